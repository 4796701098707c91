"""E2bird (Cui et al., TPDS 2021): its figures and tables again."""
