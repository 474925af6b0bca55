"""The rules of deployments."""
