"""Tests with other people's programs: clients, load generators and another server."""
