"""Where checkpoints are kept: a folder, or a bucket of S3."""
