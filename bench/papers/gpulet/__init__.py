"""gpulet (Choi et al., USENIX ATC 2022): its figures again."""
