"""How the accelerators are cut: one planner a file."""
