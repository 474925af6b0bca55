"""Adapters to GPU clouds."""
