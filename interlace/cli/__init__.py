"""Wiring and commands."""
