"""Cost of a plan before it is placed: plain scalar loops over arrays, compiled by numba.

Only searches and the policy import it; the last word has `planner.cost`.
"""
