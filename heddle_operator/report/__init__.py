"""Outside view of a decision: conditions, status, Events."""
