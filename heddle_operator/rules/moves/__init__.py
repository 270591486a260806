"""What forces a job to move, and the pods that hold more GPUs than it may have."""
