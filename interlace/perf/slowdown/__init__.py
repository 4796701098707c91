"""Slowdown of batches side by side: learned from observations, with its errors."""
