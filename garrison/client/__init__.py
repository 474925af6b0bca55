"""The public Python SDK."""
