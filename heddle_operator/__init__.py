"""Kubernetes: watches nodes and agents, decides, applies.

The core (`epochs.decide`) is pure; effects are at the edge, behind the seam `ports.cluster`.
"""
