"""HTTP/1.1: heads, bodies in the arena, routes, replies."""
