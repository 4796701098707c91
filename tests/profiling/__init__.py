"""Tests of profiling and of the profile store."""
