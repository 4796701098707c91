"""Regret: what our dispatcher serves in time, against an optimum that knows every arrival."""
