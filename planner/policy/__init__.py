"""The learned planner: an environment that builds plans, and a network that chooses in it.

Here live the state of Table 2, the constructions, the network's forward pass in numpy, the trained
weights and their cards.  Nothing here imports torch: training is `planner.training`.
Jitted functions call only their own file's and `planner.kernel`'s, because numba does not notice a
change in a function of another file.
"""
