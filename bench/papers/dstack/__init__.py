"""D-STACK's tables and figures on a simulated V100: one command each."""
