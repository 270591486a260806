"""Find the best plan: the driver, its engines in the folders below, and what they find."""
