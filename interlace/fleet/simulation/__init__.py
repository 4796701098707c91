"""Fleets in virtual time: controller, routers and nodes of the same code, news and orders late."""
