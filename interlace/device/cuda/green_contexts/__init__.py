"""Shares of a GPU: atoms of SMs, the ladder of partitions, and the lanes they give."""
