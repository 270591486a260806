"""What GPUs there are: nodes and GPU types."""
