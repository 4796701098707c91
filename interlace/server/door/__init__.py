"""The main process's end of the gRPC process: its life, its frames, its calls."""
