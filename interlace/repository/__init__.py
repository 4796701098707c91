"""Model folders on disk: layout, config.pbtxt, interlace.toml, digests."""
