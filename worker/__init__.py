"""A GPU pod: an agent, a warm fork server and one rank process per GPU.

A rank trains, pauses at a step boundary, moves state and resumes.

`contract.py` is what the operator may know of it; only `engine/deepspeed.py` knows DeepSpeed.
"""
