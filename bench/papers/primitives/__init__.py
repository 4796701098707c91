"""GPU primitives (Dhakal et al., CLOUD 2021): its figures and tables again."""
