"""Costs of layers and messages on each GPU type: files, and the roofline behind them."""
