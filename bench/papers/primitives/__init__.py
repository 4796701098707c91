"""The figures and tables of the GPU primitives paper: one command each."""
