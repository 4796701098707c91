"""Bytes that move once: shared-memory arenas with one writer each, and small frames."""
