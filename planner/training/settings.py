"""How a policy is trained, as far as somebody may want it otherwise.

What nobody changes is a constant beside its use (`planner.training.trainer`).
Invariant: equal settings, model and types train equal weights on equal machines.
Source: Heddle, section 5.5.  Beyond it, each by a setting of its own: cloning of search teachers,
features of the batch, and judging a rollout by what it adds to the best of a few, because the best
of a few is what a plan is taken from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings of one training."""

    groups: int = 10_000  # rollout groups in all; the last update is made whole
    rollouts: int = 16  # of a group
    together: int = 16  # groups of an update; their rollouts step together
    clusters: int = 8  # of compositions, whose gradients are made to agree
    # 1: rollouts are judged by their value, as in the paper; k: by what they add to the best of k
    best_of: int = 8
    compositions: int = 1128  # that are trained on, 94 of them the paper's number
    teacher_steps: int = 3_000  # of the annealing that demonstrates a plan, per composition
    # how often the teachers teach again, from the best plans known, the policy's own among them;
    # it is cloned every time
    revisions: int = 2
    cloning: int = 20  # passes over the teachers' plans, each time
    uses_clusters: bool = True  # whether gradients are made to agree (PCGrad)
    uses_imitation: bool = True  # whether the best plans are imitated (SIL)
    uses_masks: bool = True  # whether choices that cannot be packed, or hold no model, are left out
    uses_groups: bool = True  # whether a rollout is judged by its group; else by all of an update
    uses_forced: bool = True  # whether depths are forced
    uses_uniform_types: bool = True  # whether one rollout of a group draws its node classes
    divides_entropy: bool = True  # by a template's decisions, so that depth alone earns none
    uses_film: bool = True  # whether the composition's summary conditions the network (FiLM)
    uses_cloning: bool = True  # whether search teachers come before GRPO
    sees_batch: bool = True  # whether features tell how the batch is shared
    seed: int = 0  # of everything that is drawn

    @property
    def updates(self) -> int:
        """Updates of the weights by GRPO."""
        return math.ceil(self.groups / self.together)
