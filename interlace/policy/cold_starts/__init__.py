"""How does a model that is not resident get in: one file an answer."""
