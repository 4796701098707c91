"""Models taken apart on this machine's cores."""
