"""This machine's processor as a device: partitions are worker processes pinned to cores."""
