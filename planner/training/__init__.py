"""Train the policy: the only place of the planner that knows torch.

Here live the torch twin of the network, the objective, its gradients, what is imitated, and the
loop.  Nothing else of the planner imports this package but the command `heddle train-policy`, which
does so when it is called.
"""
