"""A first look at a GPU: whether each thing that all else stands on works, and which way of it."""
