"""The shipped offers with their source and date, and their loader."""
