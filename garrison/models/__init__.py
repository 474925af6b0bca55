"""Values that cross a boundary: specs, statuses, messages."""
