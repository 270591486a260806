"""The Kubernetes shell: watches nodes and agents, decides, applies.

The core (`decide`, `replan`) is pure; effects stand at the edge behind the seam `Cluster`.
"""
