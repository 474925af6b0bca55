"""The rules of nodepools."""
