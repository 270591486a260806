"""The search on few GPUs, where every plan is placed and priced by the one cost model."""
