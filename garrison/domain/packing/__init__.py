"""Replicas on machines: what fits where, and what to buy for the rest."""
