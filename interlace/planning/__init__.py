"""Capacity planning: a scenario in, the fewest accelerators and how they are cut out."""
