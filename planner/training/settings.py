"""How a policy is trained: every number that is not the paper's network.

Invariant: equal settings, model and types train equal weights on equal machines.
Source: Heddle, section 5.5; what the paper leaves open is from research on plan search: entropy
0.04, rate 5e-4 and forced depths never under 0.25, because less of them collapsed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of one training.

    Attributes:
        groups: rollout groups in all.
        rollouts: of a group.
        together: groups of an update; their rollouts step together.
        clusters: of compositions, whose gradients are made to agree.
        epochs: passes over an update's decisions.
        rate: of Adam, falling to a tenth.
        clip: of PPO's ratio.
        entropy: weight of the entropy bonus.
        penalty: delta of equation 1, as a share of the best throughput of the group.
        forced: probability of a forced depth, at first and at last.
        imitation: weight of self-imitation.
        imitation_every: so many updates.
        compositions: that are trained on, 94 of them the paper's number.
        lessons: steps of the annealing that teaches, per composition.
        cloning: passes over the teachers' plans.
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
    epochs: int = 2
    rate: float = 5e-4
    clip: float = 0.2
    entropy: float = 0.04
    penalty: float = 0.1
    forced: tuple[float, float] = (0.8, 0.25)
    imitation: float = 0.1
    imitation_every: int = 4
    compositions: int = 376
    lessons: int = 4_000
    cloning: int = 12
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
        return max(1, self.groups // self.together)
