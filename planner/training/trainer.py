"""The training loop: teachers, cloning, then updates by GRPO.

Invariant: its whole state is in `state()`, so that a training that goes on from it ends with the
same weights, bit for bit, as one that was never cut.
Source: Heddle, section 5.5; teachers that go on from the policy's own plans: Anthony et al. (2017),
expert iteration.   Legend: E compositions, R rollouts, Z features of a summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from planner.estimator.tables import Floats, Ints
from planner.policy.environment import Episodes
from planner.policy.network import Network
from planner.policy.partial_plans import Templates
from planner.policy.rollouts import PolicyActor, play
from planner.training.curriculum import Curriculum
from planner.training.imitation import Buffers, replay
from planner.training.objective import (
    Judged,
    advantages,
    clipped,
    imitated,
    judge,
    without_conflicts,
)
from planner.training.records import Forcing, Records, record
from planner.training.settings import TrainingSettings
from planner.training.teacher import Demonstration, teach
from planner.training.torch_network import TorchNetwork, as_network, initial_weights, named

TEMPERATURES = (0.5, 1.0)  # of the rollouts that a policy is judged by, and then used with
RATE = 5e-4  # of Adam
ADAM: dict[str, Any] = {
    "amsgrad": False,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.0,
    "eps": 1e-8,
    "maximize": True,
}
LEAST_RATE = 0.1  # of the rate, at the end
LARGEST_GRADIENT = 1.0  # norm
EPOCHS = 2  # passes over an update's decisions
CLIP = 0.2  # of PPO's ratio
ENTROPY = 0.025  # weight of its bonus
PENALTY = 0.1  # delta of equation 1, as a share of the best throughput known
FORCED = (0.8, 0.25)  # probability of a forced depth, at first and at last
IMITATION, IMITATION_EVERY = 0.1, 4  # weight of self-imitation, and in which updates
CLONED_TOGETHER = 32  # plans of a cloning step
CLONING_RATE, CLONING_ENTROPY = 2.0, 0.1  # of what improving has
TEACHERS = 2  # at a time; a training may take two cores
TAUGHT_TOGETHER = 32  # demonstrations that are begun at once
ROUND_SEEDS = 1_000_003  # between the seeds of one round of teaching and the next

Teacher: TypeAlias = Callable[..., Demonstration]  # called as `teach` is


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """How a training is doing."""

    phase: str  # teach, clone or improve
    done: int  # units of the phase
    total: int  # likewise
    entropy: float = 0.0  # per decision, in nats; 0 where there is none yet
    best: float = 0.0  # best of 16 on the validation set so far, in per cent of its reference
    last: float = 0.0  # the same of the last look


class Trainer:
    """One training."""

    def __init__(
        self, curriculum: Curriculum, settings: TrainingSettings, teacher: Teacher = teach
    ) -> None:
        """Before the first step."""
        # Sums in one order, whatever the machine; a second thread only spins beside other work.
        torch.set_num_threads(1)
        self.curriculum, self.settings = curriculum, settings
        self._teacher = teacher
        self._generator = np.random.default_rng(settings.seed)
        self._weights = initial_weights(curriculum.schema, settings.seed)
        zeros = torch.zeros_like(self.weights)
        self._moments = (zeros, zeros.clone(), torch.zeros(()))  # of Adam, and its steps
        self._updates = 0
        self._round = 0
        self._taught = 0
        self._cloned = 0
        self._environments = tuple(curriculum.environment(one) for one in curriculum.training)
        self._demonstrations: list[Templates] = [()] * len(self._environments)
        summaries = np.array([one.space.summary for one in self._environments])
        self._summaries = summaries.astype(np.float32)
        self._buffers = Buffers(summaries)
        self.network: Network = as_network(
            self.weights, curriculum.schema, uses_film=settings.uses_film
        )

    @property
    def weights(self) -> Tensor:
        """All weights as one vector, which the training goes on to change."""
        return self._weights.detach()

    def run(self) -> Iterator[TrainingStep]:
        """Go on to the end; between any two results the state may be kept."""
        if self.settings.uses_cloning:
            while self._round <= self.settings.revisions:
                yield from self._teach()
                yield from self._clone()
                self._round += 1
                self._taught = self._cloned = 0
        while self._updates < self.settings.updates:
            yield self._improve()

    # ------------------------------------------------------------------ teachers, and cloning

    def _teach(self) -> Iterator[TrainingStep]:
        """Demonstrate on each composition; from the second round on from the best plan known.

        Teachers work side by side; what they show depends on the composition alone.
        """
        total = len(self._environments)
        with ThreadPoolExecutor(TEACHERS) as pool:
            while self._taught < total:
                part = range(self._taught, min(total, self._taught + TAUGHT_TOGETHER))
                starts = [self._start(index) for index in part]
                for index, shown in zip(part, pool.map(self._show, part, starts), strict=True):
                    if shown.templates:
                        throughput = self._environments[index].space.batch / shown.seconds
                        self._buffers.offer(index, throughput, shown.templates)
                    self._demonstrations[index] = self._buffers.best(index)[1]
                    self._taught += 1
                    yield TrainingStep(phase="teach", done=self._taught, total=total)

    def _start(self, index: int) -> Templates:
        """The best plan known; from the second round on the best of a group of the policy's too."""
        if self._round:
            episodes = Episodes([self._environments[index]], self.settings.rollouts)
            generator = np.random.default_rng(self._seed(index))
            play(episodes, PolicyActor(self.network, episodes, generator, TEMPERATURES))
            best = int(episodes.throughput.argmax())
            self._buffers.offer(index, float(episodes.throughput[best]), episodes.templates(best))
        return self._buffers.best(index)[1]

    def _show(self, index: int, start: Templates) -> Demonstration:
        one = self._environments[index]
        steps = self.settings.teacher_steps
        return self._teacher(one.pricing.tables, one.limits, steps, self._seed(index), start)

    def _seed(self, index: int) -> int:
        return 1000 * self.settings.seed + index + ROUND_SEEDS * self._round

    def _clone(self) -> Iterator[TrainingStep]:
        known = [index for index, templates in enumerate(self._demonstrations) if templates]
        parts = [known[i : i + CLONED_TOGETHER] for i in range(0, len(known), CLONED_TOGETHER)]
        total = self.settings.cloning * len(parts)
        held: dict[int, Records] = {}
        while self._cloned < total:
            index = self._cloned % len(parts)
            part = parts[index]
            if index not in held:
                held[index], _ = replay(
                    [self._environments[i] for i in part],
                    [self._demonstrations[i] for i in part],
                    self.network,
                )
            judged = self._judge(held[index], np.array(part), 1)
            objective = imitated(judged, held[index], np.ones(len(part)))
            objective = objective + CLONING_ENTROPY * ENTROPY * judged.entropy
            self._ascend(self._gradient(objective), CLONING_RATE * RATE)
            self._cloned += 1
            yield TrainingStep(
                phase="clone",
                done=self._cloned,
                total=total,
                entropy=float(judged.entropy.detach()),
            )

    # ------------------------------------------------------------------ GRPO

    def _improve(self) -> TrainingStep:
        settings = self.settings
        picked = self._pick()
        episodes = Episodes([self._environments[i] for i in picked], settings.rollouts)
        records = record(self.network, episodes, self._generator, self._forcing())
        gain = self._advantages(picked, episodes)
        for row, throughput in enumerate(episodes.throughput):
            c = int(picked[row // settings.rollouts])
            self._buffers.offer(c, float(throughput), episodes.templates(row))
        parts = np.array_split(np.arange(episodes.rows).reshape(len(picked), -1), settings.clusters)
        clusters = [records.of_rows(part[0, 0], part[-1, -1] + 1) for part in parts if len(part)]
        passed = self._updates / settings.updates
        entropies = []
        for epoch in range(EPOCHS):
            gradients = []
            for own in clusters:
                judged = self._judge(own, picked, settings.rollouts)
                objective = clipped(judged, own, gain, CLIP) + ENTROPY * judged.entropy
                gradients.append(self._gradient(objective))
                entropies.append(float(judged.entropy.detach()))
            gradient = self._agreed(gradients)
            if epoch == 0 and settings.uses_imitation and self._updates % IMITATION_EVERY == 0:
                gradient = gradient + self._imitation(picked)
            self._ascend(gradient, RATE * (1 - (1 - LEAST_RATE) * passed))
        self._updates += 1
        entropy = float(np.mean(entropies))
        return TrainingStep(
            phase="improve", done=self._updates, total=settings.updates, entropy=entropy
        )

    def _advantages(self, picked: Ints, episodes: Episodes) -> Floats:
        """[R] by samples a second, as a share of the best known of each composition."""
        each = self.settings.rollouts
        throughput = episodes.throughput
        if not self.settings.uses_groups:
            values = np.where(throughput > 0, throughput, -PENALTY * throughput.max())
            return advantages(values, len(values), self.settings.best_of)
        known = np.array([self._buffers.best(int(c))[0] for c in picked])
        best = np.maximum(np.maximum(known, throughput.reshape(-1, each).max(axis=1)), 1e-9)
        values = np.where(throughput > 0, throughput / np.repeat(best, each), -PENALTY)
        return advantages(values, each, self.settings.best_of)

    def _pick(self) -> Ints:
        """Compositions of the next update, alike ones beside each other; each turns up as often."""
        settings, total = self.settings, len(self._environments)
        first = self._updates * settings.together
        picked = []
        for place in range(first, first + settings.together):
            cycle, index = divmod(place, total)
            order = np.random.default_rng([settings.seed, cycle]).permutation(total)
            picked.append(int(order[index]))
        types = len(self.curriculum.types)

        def likeness(c: int) -> tuple[tuple[bool, ...], float]:
            summary = self._summaries[c]
            return tuple(bool(share > 0) for share in summary[:types]), float(summary[types])

        return np.array(sorted(picked, key=likeness))

    def _forcing(self) -> Forcing:
        settings = self.settings
        depth, types = np.zeros((2, settings.together * settings.rollouts), bool)
        if settings.uses_forced:
            first, last = FORCED
            passed = self._updates / settings.updates
            depth = self._generator.random(len(depth)) < first + (last - first) * passed
        if settings.uses_uniform_types:
            types[:: settings.rollouts] = True
        return Forcing(depth, types)

    def _agreed(self, gradients: list[Tensor]) -> Tensor:
        if self.settings.uses_clusters:
            return without_conflicts(gradients, self._generator)
        return torch.stack(gradients).mean(dim=0)

    def _imitation(self, picked: Ints) -> Tensor:
        """The gradient towards the best plans of these compositions and of similar ones."""
        rows = self._buffers.around([int(c) for c in picked])
        if not rows:
            return torch.zeros_like(self._weights)
        compositions = np.array([c for c, _, _ in rows])
        records, _ = replay(
            [self._environments[c] for c in compositions],
            [templates for _, _, templates in rows],
            self.network,
        )
        judged = self._judge(records, compositions, 1)
        objective = imitated(judged, records, np.array([share for _, share, _ in rows]))
        return IMITATION * self._gradient(objective)

    # ------------------------------------------------------------------ weights

    def _judge(self, records: Records, compositions: Ints, each: int) -> Judged:
        weights = named(self._weights, self.curriculum.schema)
        network = TorchNetwork(weights, self.settings.uses_film)
        summaries = torch.from_numpy(self._summaries[compositions])
        divides = self.settings.divides_entropy
        return judge(network, records, summaries, each, divides_entropy=divides)

    def _gradient(self, objective: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(objective, self._weights)
        return found

    def _ascend(self, gradient: Tensor, rate: float) -> None:
        """One step of Adam towards a larger objective."""
        gradient = gradient * min(1.0, LARGEST_GRADIENT / float(gradient.norm().clamp_min(1e-12)))
        first, second, steps = self._moments
        with torch.no_grad():
            # not the class `Adam`, which imports torch's compiler for two seconds
            adam([self._weights], [gradient], [first], [second], [], [steps], lr=rate, **ADAM)

    # ------------------------------------------------------------------ to be kept, and taken up

    def state(self) -> dict[str, Any]:
        """Tensors and plain data from which the training can go on."""
        return {
            "weights": self.weights,
            "moments": self._moments,
            "updates": self._updates,
            "round": self._round,
            "taught": self._taught,
            "cloned": self._cloned,
            "demonstrations": self._demonstrations,
            "generator": self._generator.bit_generator.state,
            "buffers": self._buffers.held,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        with torch.no_grad():
            self._weights.copy_(state["weights"])
        self._moments = state["moments"]
        self._updates, self._round = state["updates"], state["round"]
        self._taught, self._cloned = state["taught"], state["cloned"]
        self._demonstrations = state["demonstrations"]
        self._generator.bit_generator.state = state["generator"]
        self._buffers.held = state["buffers"]
