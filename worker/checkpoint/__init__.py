"""A checkpoint: the training state of one step, in files that any plan can load."""
