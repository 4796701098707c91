"""KServe v2 inference without a transport: a checked call in, exactly one answer out."""
