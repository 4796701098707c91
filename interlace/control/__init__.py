"""What is deployed: load, reload, unload, start and stop, over the runtime."""
