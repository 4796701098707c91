"""The real example models together on both cores, an SLO each: Interlace and the best peers."""
