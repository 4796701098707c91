"""Ways to learn of a batch's end that the server does not use: what Sync-lite is compared with."""
