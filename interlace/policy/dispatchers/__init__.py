"""What runs now: one dispatcher a file."""
