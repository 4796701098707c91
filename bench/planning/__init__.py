"""Planners measured: against exact search, published plans, bounds and the clock."""
