"""One plan for many nodes: which nodes exist, what each is to serve, and the orders to them."""
