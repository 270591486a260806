"""Offer of the cluster: nodes, GPUs, claims on them, and notices that they will go."""
