"""The GPUs that there are: nodes and GPU types."""
