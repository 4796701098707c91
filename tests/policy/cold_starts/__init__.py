"""Tests of the answers to a cold start."""
