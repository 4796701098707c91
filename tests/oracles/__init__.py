"""Figures of published work, reproduced."""
