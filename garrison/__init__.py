"""Garrison, a durable orchestrator of GPU compute on Temporal."""
