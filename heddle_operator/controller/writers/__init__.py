"""How a job is told to the API server: the pace of its status, and its Events."""
