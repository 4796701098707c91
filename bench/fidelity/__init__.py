"""Simulated against live: the same trace and plan on this machine's cores and in virtual time."""
