"""flat-RL: a policy that chooses all six decisions of a plan, and is trained by every evaluation.

A template has its depth, a GPU type and a TP degree for each stage, and also what Heddle's fill
derives: layers of each stage, replicas, micro-batch.  The paper says no more than "the same policy
over the raw six-dimensional action space".  So network, learning rule and episodes are Heddle's
(`learner`); `RAW` has no masks, `MASKED` keeps those of Heddle, as far as packing goes.
Source: Heddle, sections 4 and 6.4.
"""

from benchmarks.baselines.flat_rl.episodes import Decided
from benchmarks.baselines.flat_rl.learner import MASKED, RAW, STRUCTURE, Learner, plan

__all__ = ["MASKED", "RAW", "STRUCTURE", "Decided", "Learner", "plan"]
