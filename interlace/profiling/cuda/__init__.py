"""What is measured on a GPU beside latency: layers, memory pressure."""
