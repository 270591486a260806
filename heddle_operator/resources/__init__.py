"""Kubernetes bodies: pods, budgets, secrets, Events, the record of an epoch."""
