"""Which GPUs each of several jobs may plan with."""
