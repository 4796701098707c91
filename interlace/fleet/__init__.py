"""One plan for many nodes: who is there, what each is to serve, and what they are told."""
