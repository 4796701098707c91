"""Interlace: many models on few accelerators, every latency promise kept."""

from interlace.compiled import prefer_sources_if_changed

__version__ = "0.1.0"

prefer_sources_if_changed()
