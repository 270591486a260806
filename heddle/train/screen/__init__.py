"""What a run shows while it trains: a live view on a terminal, lines elsewhere."""
