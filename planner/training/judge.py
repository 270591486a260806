"""How good a policy is on generated compositions that it was not trained on.

`python -m planner.training.judge MODEL ...` judges policies that come with Heddle again, at today's
prices, and writes their cards.
Invariant: a policy is judged by the same questions whenever that is done.
Source: Heddle, section 6.   Legend: E questions.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from planner.estimator.tables import Floats
from planner.model.catalogue import find_model
from planner.policy.card import PolicyCard
from planner.policy.environment import Episodes
from planner.policy.network import Network
from planner.policy.rollouts import PolicyActor, play
from planner.policy.weights import WEIGHTS, Policy, find_policy, policy_folder, write_policy
from planner.training.curriculum import Curriculum, curriculum_of
from planner.training.settings import TrainingSettings
from planner.training.teacher import teach
from planner.training.trainer import TEMPERATURES

ROLLOUTS = (16, 128)  # of which the best is taken, in the card


class Judge:
    """The questions of a curriculum's validation, and what a teacher finds on them."""

    def __init__(
        self, curriculum: Curriculum, teacher_steps: int, reference: Floats | None = None
    ) -> None:
        """Prepare, with an annealing of twice the steps on each question, unless it was done."""
        self._environments = tuple(curriculum.environment(one) for one in curriculum.validation)
        self._steps = 2 * teacher_steps
        self._reference: Floats = np.zeros(0) if reference is None else reference

    @property
    def reference(self) -> Floats:
        """[E] throughput of the annealing; 0 where it found no plan."""
        if not len(self._reference):
            taught = [
                teach(one.pricing.tables, one.limits, self._steps, 7) for one in self._environments
            ]
            batches = np.array([one.space.batch for one in self._environments])
            self._reference = batches / np.array([shown.seconds for shown in taught])
        return self._reference

    def percent(self, network: Network, rollouts: int) -> Floats:
        """Best of so many rollouts, in per cent of the reference, where there is one."""
        episodes = Episodes(self._environments, rollouts)
        play(episodes, PolicyActor(network, episodes, np.random.default_rng(1), TEMPERATURES))
        known = self.reference > 0
        percents: Floats = 100 * episodes.best[known] / self.reference[known]
        return percents

    def evaluation(self, network: Network) -> dict[str, Any]:
        """What a card says of the policy's quality."""
        percents = {n: self.percent(network, n) for n in ROLLOUTS}
        return {
            "on": f"{len(self._environments)} generated compositions that were not trained on",
            "reference": f"an annealing of {self._steps} steps each",
        } | {
            f"best_of_{n}_percent": {
                "mean": round(float(found.mean()), 2),
                "worst": round(float(found.min()), 2),
            }
            for n, found in percents.items()
        }


def judged_again(policy: Policy, settings: TrainingSettings) -> PolicyCard:
    """The card of a policy, its quality at today's prices; the settings tell the teacher's steps.

    Raises:
        UnprofiledConfiguration: a type has no profile.
    """
    card = policy.card
    settings = replace(settings, compositions=1, sees_batch=card.sees_batch)
    curriculum = curriculum_of(find_model(card.model), card.types, settings)
    evaluation = Judge(curriculum, settings.teacher_steps).evaluation(policy.network)
    return replace(card, evaluation=evaluation, profile=curriculum.profile.digest)


def main() -> None:
    """Judge the policies of the models that are named."""
    for model in sys.argv[1:]:
        policy, folder = find_policy(model), policy_folder(model)
        card = judged_again(policy, TrainingSettings())
        write_policy(folder, card, (folder / WEIGHTS).read_bytes())


if __name__ == "__main__":
    main()
