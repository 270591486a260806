"""The commands of the planner: what they read, what they print and draw."""
