"""Apps: several models behind one endpoint, with one deadline."""
