"""ConfigMaps that a job names: a config.json of its model, and a plan."""
