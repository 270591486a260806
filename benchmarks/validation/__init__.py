"""How far the cost model is from measurements that others made."""
