"""The simulator compiled: the engine's decisions over arrays, for sweeps of many loads."""
