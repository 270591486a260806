"""Observations, intended actions, and the records that outlive the operator: frozen data."""
