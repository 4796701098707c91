"""The configuration program: patterns of turns, priced, chosen and packed into accelerators."""
