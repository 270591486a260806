"""The local cluster adapter: pods are processes of this machine, nodes are entries of a YAML file.

Only what a Kubernetes does for us may live here; no decisions.
"""
