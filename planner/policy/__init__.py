"""The learned planner: an environment that builds plans, and a network that chooses in it.

Here live the state of Table 2, the episodes, the network's forward pass in numpy, the trained
weights and their cards.  Nothing here imports torch: training is `planner.training`.
"""
