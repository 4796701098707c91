"""One file a model format: from a version folder to something that runs on numpy arrays."""
