"""Apps of several models: what follows what, who may take how long, what became of them."""
