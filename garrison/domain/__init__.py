"""Decisions: same input, same answer; no clock, no I/O, no await."""
