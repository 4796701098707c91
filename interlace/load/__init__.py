"""Load generation: open-loop requests to a running server, and what came of them."""
