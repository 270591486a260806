"""Upper bound of the throughput of all plans."""
