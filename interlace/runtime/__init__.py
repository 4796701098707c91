"""The engine set in motion: a clock, devices, observers."""
