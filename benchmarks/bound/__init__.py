"""What no plan can exceed."""
