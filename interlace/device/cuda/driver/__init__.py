"""The few driver calls that the devices need, and the kernels of our own."""
