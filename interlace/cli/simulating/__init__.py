"""`interlace simulate`: a scenario's trace played in virtual time by one system or several."""
