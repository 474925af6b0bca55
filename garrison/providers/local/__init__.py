"""Nodes as supervised processes on this machine."""
