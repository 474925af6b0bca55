"""How many replicas a load needs, and who is told."""
