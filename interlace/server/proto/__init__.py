"""Message definitions of the gRPC service."""
