"""Everything a client may ask besides inference, for both transports."""
