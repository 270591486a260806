"""Checkpoints as `heddle checkpoint` reads them: of a folder, and of a job of the cluster."""
