"""Benchmarks: what Garrison costs beside Temporal alone, on the machine at hand."""
