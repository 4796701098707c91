"""Many nodes: what a router costs, what is lost when nodes die."""
