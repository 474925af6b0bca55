"""Side effects, one each, thin."""
