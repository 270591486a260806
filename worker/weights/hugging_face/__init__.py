"""Folders as `transformers` has them: names, shapes, shards and config.json, read and written."""
