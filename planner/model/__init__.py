"""The training task: the shape of a model, its named tensors, and the settings of its training."""
