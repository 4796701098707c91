"""A model's work as CUDA graphs: captured, kept, launched."""
