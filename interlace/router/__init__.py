"""Routers: stateless front-ends that pass requests to the nodes that will answer them first."""
