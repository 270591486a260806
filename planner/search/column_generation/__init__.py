"""Column generation: a linear programme over templates, a dynamic programme for new ones."""
