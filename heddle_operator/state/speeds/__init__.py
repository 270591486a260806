"""How fast nodes and GPU types compute, as the ranks measure it."""
