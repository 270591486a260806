"""Sailor: even layers, one micro-batch size, TP by a rule, and a dynamic programme over stages.

For each PP and micro-batch size a rule gives one TP degree for each GPU type and stage; for each
DP, from high to low, a recursion over the stages splits the replicas over GPU types.  There is one
region, so that its lists of regions play no part.  Nodes of several sizes are read as nodes of one
GPU.
As released, the first GPU type by name takes the smallest TP degree that fits, whatever its speed.
Source: Strati et al., Sailor, SOSP 2025.
"""

from benchmarks.baselines.sailor.search import plan as plan
