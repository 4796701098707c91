"""Torch on a lane of a GPU."""
