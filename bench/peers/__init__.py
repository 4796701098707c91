"""Interlace beside other inference servers: same models, same load generator, same core."""
