"""More models than memory: the engine on simulated accelerators, each answer beside the others."""
