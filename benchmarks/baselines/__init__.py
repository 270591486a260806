"""The planners that Heddle is compared with, each written from the description of its paper.

`amp`, `espresso`, `hexiscale`, `metis` and `sailor` search and prune as they are described, and
rank by their own formula and memory rule; `mcts` is a plain Monte Carlo tree search over Heddle's
own decisions, and `flat_rl` a policy that learns all six decisions of a plan.  All are fed with
Heddle's profiles.  What Heddle's evaluator says of their plans is another matter
(`benchmarks.baselines.judge`) and changes no ranking.
"""
