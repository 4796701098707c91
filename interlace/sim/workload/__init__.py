"""Workloads: how the requests of one model are spread over time."""
