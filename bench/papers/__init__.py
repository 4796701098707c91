"""The papers' figures and tables again, one command each."""
