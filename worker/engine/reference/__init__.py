"""The oracle: the same training in one process of plain torch."""
