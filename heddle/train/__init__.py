"""A job on this machine: the operator's decision loop over processes, without a Kubernetes.

Nothing here decides; it prepares a run, feeds it events, shows it, and sums it up.
"""
