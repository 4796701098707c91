"""Interlace: many models on few accelerators, every latency promise kept."""

__version__ = "0.1.0"
