"""What the cluster offers: nodes, GPUs, claims on them, and notices that they will go."""
