"""CUDA devices: shares of a real GPU as lanes of one process, or as processes of their own."""
