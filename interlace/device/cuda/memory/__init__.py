"""Page-locked memory that the GPU reads, device memory by model, rings of inputs."""
