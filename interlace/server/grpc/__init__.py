"""gRPC over our own HTTP/2, in a process of its own."""
