"""Whole runs in virtual time, by the engine that serves."""
