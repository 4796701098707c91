"""Fills profiles from a device, and keeps them."""
