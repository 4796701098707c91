"""The nouns every other room speaks of: frozen values, complete when built."""
