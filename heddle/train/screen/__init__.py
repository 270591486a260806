"""Display of a run while it trains: a live view on a terminal, lines elsewhere."""
