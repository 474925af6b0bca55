"""The rules of clusters."""
