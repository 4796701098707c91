"""Which node a request goes to, decided without I/O: routers and simulations ask the same code."""
