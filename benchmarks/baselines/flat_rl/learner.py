"""flat-RL: Heddle's learning rule over all six decisions of a plan, on one composition.

Every evaluation of its training counts, that of a plan which cannot run too.  A group of rollouts
is an update; forced depths, entropy bonus, clipped objective and self-imitation by depth are
Heddle's, with its constants.  The rate is higher and does not fall, so that a larger budget learns
first what a smaller one learns.  Teachers, PCGrad and FiLM are left out: one composition has no use
for the last two, and the paper's policy has no teachers.
`STRUCTURE` has the same learner decide Heddle's three structural decisions alone, for comparison.
Invariant: equal questions, budgets and seeds learn equally.
Source: Heddle, sections 5.5 and 6.4 ("Search efficiency").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.baselines.estimated_plans import answer_by_estimates
from benchmarks.baselines.flat_rl.episodes import Decided, RawEpisodes, play
from benchmarks.baselines.flat_rl.network import Actor, Made, joined, judge_made, shapes_with
from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from planner.estimator.build_tables import Pricing
from planner.estimator.tables import MAX_TEMPLATES
from planner.estimator.top_k import TopK, new_top_k, offer
from planner.policy.environment import Environment, no_limits
from planner.policy.network import Network
from planner.policy.schema import FeatureSchema
from planner.training.curriculum import D_MAX
from planner.training.imitation import BEST
from planner.training.objective import advantages, clipped, imitated
from planner.training.records import Forcing
from planner.training.settings import TrainingSettings
from planner.training.torch_network import TorchNetwork, by_name, weights_of_shapes
from planner.training.trainer import (
    CLIP,
    ENTROPY,
    EPOCHS,
    FORCED,
    IMITATION,
    IMITATION_EVERY,
    LARGEST_GRADIENT,
    PENALTY,
    RATE,
)

RAW = Decided(raw=True, masked=False)
MASKED = Decided(raw=True, masked=True)
STRUCTURE = Decided(raw=False, masked=True)
ROLLOUTS = 64  # of a group, which is an update
OWN_RATE = 4 * RATE  # of Adam: there are few updates on one composition
FORCED_FOR = 32_000  # evaluations, over which the share of forced depths falls
BEST_OF = TrainingSettings().best_of


def plan(question: Question, budget: Budget, decided: Decided = RAW) -> Answer:
    """The best plans of a training from its beginning; see `answer_by_estimates`."""

    def load(pricing: Pricing) -> None:
        Learner(question, pricing, decided).improve(lambda priced: priced <= ROLLOUTS)

    def search(pricing: Pricing, meter: Meter) -> TopK:
        learner = Learner(question, pricing, decided)
        while meter.goes_on() and learner.improve(
            lambda priced: priced <= budget.evaluations and meter.passed_s < budget.seconds
        ):
            meter.priced = learner.evaluations
        meter.priced = learner.evaluations
        return learner.top_k

    return answer_by_estimates(question, budget, load, search)


@dataclass(slots=True)
class _Kept:
    """The best rollout of a depth: its samples per second, and its decisions."""

    throughput: float
    made: Made


class Learner:
    """One training.

    Attributes:
        evaluations: plans so far.
        invalid: of them, those that cannot run.
        top_k: the best plans so far.
    """

    def __init__(self, question: Question, pricing: Pricing, decided: Decided) -> None:
        """Before the first rollout."""
        torch.set_num_threads(1)  # sums in one order
        self.decided = decided
        types = tuple(dict.fromkeys(one.gpu_type for one in pricing.classes))
        degrees = tuple(sorted({int(tp) for tp in pricing.tables.option_tp}))
        deepest = min(D_MAX, pricing.tables.layers)
        schema = FeatureSchema(types, degrees, deepest, MAX_TEMPLATES)
        self._environment = Environment.of(pricing, schema, no_limits(deepest, MAX_TEMPLATES))
        self._summary = self._environment.space.summary[None].astype(np.float32)
        self._shapes = shapes_with(schema, decided.heads)
        self._weights = weights_of_shapes(self._shapes, question.seed)
        self._adam = torch.optim.Adam([self._weights], lr=OWN_RATE, maximize=True)
        parts = by_name(self._weights.detach(), self._shapes)
        self._network = Network({name: part.numpy() for name, part in parts.items()}, False)
        self._generator = np.random.default_rng(question.seed)
        self._kept: dict[int, _Kept] = {}
        self._updates = 0
        self.evaluations, self.invalid, self.top_k = 0, 0, new_top_k()

    def improve(self, fits: Callable[[int], bool] = lambda _: True) -> bool:
        """Play a group and learn from it; False if `fits` ended it, which leaves nothing learned.

        Args:
            fits: whether so many plans may be evaluated in all.
        """
        before = self.evaluations
        episodes = RawEpisodes(self._environment, ROLLOUTS, self.decided)
        actor = Actor(
            self._network, episodes, self._generator, self._forcing(), episodes.candidates
        )
        play(episodes, actor, lambda priced: fits(before + priced))
        self.evaluations += episodes.evaluations
        self.invalid += episodes.invalid
        for row in range(int(episodes.top_k[0].number[0])):
            offer(episodes.top_k[0], row, self.top_k)
        if len(episodes.live):
            return False
        made = actor.all_made()
        self._learn(made, self._advantages(episodes))
        for row, throughput in enumerate(episodes.throughput):
            self._offer(row, float(throughput), episodes, made)
        self._updates += 1
        return True

    def _forcing(self) -> Forcing:
        first, last = FORCED
        share = first + (last - first) * min(1.0, self.evaluations / FORCED_FOR)
        types = np.zeros(ROLLOUTS, bool)
        types[0] = True
        return Forcing(self._generator.random(ROLLOUTS) < share, types)

    def _advantages(self, episodes: RawEpisodes) -> np.ndarray:
        throughput = episodes.throughput
        known = max((one.throughput for one in self._kept.values()), default=0.0)
        best = max(known, float(throughput.max()), 1e-9)
        values = np.where(throughput > 0, throughput / best, -PENALTY)
        return advantages(values, ROLLOUTS, BEST_OF)

    def _offer(self, row: int, throughput: float, episodes: RawEpisodes, made: Made) -> None:
        """Keep a rollout if it is the best whose first template has its depth."""
        if throughput <= 0:
            return
        depth = len(episodes.templates(row)[0])
        if depth not in self._kept or self._kept[depth].throughput < throughput:
            self._kept[depth] = _Kept(throughput, made.of_row(row))

    def _learn(self, made: Made, gain: np.ndarray) -> None:
        for epoch in range(EPOCHS):
            judged = self._judge(made)
            objective = clipped(judged, made.records, gain, CLIP) + ENTROPY * judged.entropy
            if epoch == 0 and self._updates % IMITATION_EVERY == 0 and self._kept:
                objective = objective + IMITATION * self._imitation()
            (gradient,) = torch.autograd.grad(objective, self._weights)
            norm = float(gradient.norm().clamp_min(1e-12))
            self._weights.grad = gradient * min(1.0, LARGEST_GRADIENT / norm)
            self._adam.step()

    def _imitation(self) -> torch.Tensor:
        ranked = sorted(self._kept.items(), key=lambda row: (-row[1].throughput, row[0]))
        kept = [one for _, one in ranked[:BEST]]
        made = joined([one.made for one in kept])
        shares = np.array([one.throughput / kept[0].throughput for one in kept])
        return imitated(self._judge(made), made.records, shares)

    def _judge(self, made: Made):
        network = TorchNetwork(by_name(self._weights, self._shapes), False)
        return judge_made(network, made, torch.from_numpy(self._summary), self.decided.heads)
