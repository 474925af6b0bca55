"""Process entry points: the only place where adapters are chosen."""
