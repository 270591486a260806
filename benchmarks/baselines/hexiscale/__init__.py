"""HexiScale: the cluster cut into pipelines by bandwidth, each laid out on its own.

A balanced graph cut gives pipelines whose GPUs are far from each other, so that fast links are
left to DP; each pipeline is cut again so that fast links are inside its groups.  TP and PP of a
group on a machine come from a table.  The number of pipelines walks up and down by one at random,
and the best of all rounds is kept; every round is a plan.  The number of rounds is an input: here
the walk goes on until it was everywhere.  The graph cut is written anew
(refinement by moves and exchanges), as the description names a library for it.
Its own system recomputes all activations, which its memory rule rests on: each round is said as the
workload asks, and once more with full recomputation.
As released, the order of the groups of a pipeline takes the smallest bandwidth; as described, the
largest.
Source: Yan et al., HexiScale, MLSys 2026.
"""

from benchmarks.baselines.hexiscale.search import plan as plan
