"""TP groups onto nodes."""
