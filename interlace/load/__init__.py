"""Load generation: open-loop requests to a running server, and their results."""
