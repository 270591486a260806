"""What layers and messages cost on each GPU type: files, and the roofline behind them."""
