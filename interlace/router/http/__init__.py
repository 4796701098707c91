"""Requests over HTTP on their way to a node and back, their bodies as they came."""
