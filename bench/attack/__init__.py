"""Attacks on a running server, each beside a client that has done nothing wrong."""
