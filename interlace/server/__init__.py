"""KServe v2 over HTTP and gRPC: thin transports over one data plane."""
