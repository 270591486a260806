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


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of one training.

    Attributes:
        groups: rollout groups in all; the last update is made whole.
        rollouts: of a group.
        together: groups of an update; their rollouts step together.
        clusters: of compositions, whose gradients are made to agree.
        best_of: 1: rollouts are judged by their value, as in the paper; k: by what they add to the
            best of k.
        compositions: that are trained on, 94 of them the paper's number.
        teacher_steps: of the annealing that demonstrates a plan, per composition.
        revisions: how often the teachers teach again, from the best plans known, the policy's own
            among them; it is cloned every time.
        cloning: passes over the teachers' plans, each time.
        uses_clusters: whether gradients are made to agree (PCGrad).
        uses_imitation: whether the best plans are imitated (SIL).
        uses_forced: whether depths are forced.
        uses_film: whether the composition's summary conditions the network (FiLM).
        uses_cloning: whether search teachers come before GRPO.
        sees_batch: whether features tell how the batch is shared.
        seed: of everything that is drawn.
    """

    groups: int = 10_000
    rollouts: int = 16
    together: int = 16
    clusters: int = 8
    best_of: int = 8
    compositions: int = 1128
    teacher_steps: int = 3_000
    revisions: int = 2
    cloning: int = 20
    uses_clusters: bool = True
    uses_imitation: bool = True
    uses_forced: bool = True
    uses_film: bool = True
    uses_cloning: bool = True
    sees_batch: bool = True
    seed: int = 0

    @property
    def updates(self) -> int:
        """Updates of the weights by GRPO."""
        return math.ceil(self.groups / self.together)
