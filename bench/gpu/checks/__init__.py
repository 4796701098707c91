"""The parts of gpu-check as tests of pytest: `scripts/gpu-check`."""
