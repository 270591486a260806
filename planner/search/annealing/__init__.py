"""Local search over whole plans before their placement."""
