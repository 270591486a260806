"""How a policy is learned: the compositions it sees, and the updates that change its weights.

The only part of the planner that may import torch, and only when something of it is called; nothing
but the commands imports it.  `compositions` needs no torch.
"""
