"""The layers of a model under tensor parallelism, and their first weights."""
