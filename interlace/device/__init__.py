"""Mechanism: the only room that touches accelerators. Devices carry out, they do not decide."""
