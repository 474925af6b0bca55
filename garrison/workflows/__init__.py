"""Durable control loops, one entity per file."""
