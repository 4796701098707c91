"""Sync-lite: how the host learns that a batch ended."""
