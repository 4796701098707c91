"""Maths over profiles: pure functions, each citing its section or equation."""
