"""Tests of what is measured on a GPU, on a fake one."""
