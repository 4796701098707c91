"""Decisions: six questions, six kinds of pure function, one catalog of systems."""
