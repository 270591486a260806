"""Judge a network by the best plan of some rollouts on compositions that it was not trained on.

Invariant: the same network, environments, number and seed give the same throughputs.
Source: research on plan search (greedy choices mislead; measure the best of n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.estimator.tables import Floats
from planner.policy.environment import Constructions, Environment
from planner.policy.network import Network
from planner.policy.rollouts import play
from planner.policy.sampling import PolicyChooser


def best_of(
    network: Network,
    environments: Sequence[Environment],
    rollouts: int,
    seed: int,
    temperatures: tuple[float, float],
) -> Floats:
    """[E] samples a second of the best of so many rollouts on each environment."""
    constructions = Constructions(environments, rollouts)
    generator = np.random.default_rng(seed)
    play(constructions, PolicyChooser(network, constructions, generator, temperatures))
    return constructions.best
