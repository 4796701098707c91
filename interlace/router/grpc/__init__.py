"""gRPC calls on their way to a node and back, their messages as they came."""
