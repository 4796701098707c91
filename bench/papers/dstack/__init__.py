"""D-STACK (Dhakal et al., 2023): its tables and figures again, on a simulated V100."""
