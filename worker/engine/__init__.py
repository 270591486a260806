"""The training engine behind its seam, and the oracle that tests compare it with.

Only `deepspeed` knows DeepSpeed; `reference` shares nothing with the engine, migration or the piece
table.
"""
