"""The HTTP reverse proxy in front of all deployments."""
