"""Benchmarks: load, other inference servers, overload, and real models together."""
