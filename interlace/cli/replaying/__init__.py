"""`interlace replay`: an event log decided once more, and told in words."""
