"""Ours against every other row of the catalog, on the papers' own workloads."""
