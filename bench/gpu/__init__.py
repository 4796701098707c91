"""What only a GPU can tell, part by part; `scripts/gpu-check` runs it."""
