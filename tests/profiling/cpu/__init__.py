"""Tests of what is measured on cores beside latency."""
