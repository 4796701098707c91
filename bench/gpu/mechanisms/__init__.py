"""Comparison 3: each mechanism of the papers on and off, on this GPU."""
