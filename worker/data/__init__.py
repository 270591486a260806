"""Training samples: the files, and how they are made from text."""
