"""Causes that force a job to move, and pods that hold more GPUs than it may have."""
