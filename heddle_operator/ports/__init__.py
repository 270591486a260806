"""The seams of the decision loop: a cluster, and what wakes it."""
