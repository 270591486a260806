"""The training loop: teachers, cloning, then updates by GRPO.

Invariant: its whole state is in `state()`, so that a training that goes on from it ends with the
same weights, bit for bit, as one that was never cut.
Source: Heddle, section 5.5; teachers that go on from the policy's own plans: Anthony et al. (2017),
expert iteration.   Legend: E compositions, R rollouts, Z features of a summary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from planner.estimator.objective import Wishes
from planner.estimator.tables import Ints, Tables
from planner.policy.environment import Episodes
from planner.policy.network import Network
from planner.policy.rollouts import PolicyActor, play
from planner.training.curriculum import Curriculum
from planner.training.imitation import (
    Buffers,
    Trajectory,
    read_trajectory,
    replay,
    templates_from,
    trajectory_from,
)
from planner.training.objective import (
    Judged,
    advantages,
    clipped,
    flat_gradient,
    imitated,
    judge,
    without_conflicts,
)
from planner.training.records import Forcing, Records, record
from planner.training.settings import TrainingSettings
from planner.training.teacher import Demonstration, Templates, teach
from planner.training.torch_network import TorchNetwork, as_network, initial_weights

LEAST_RATE = 0.1  # of the rate, at the end
CLONED_TOGETHER = 32  # plans of a cloning step
LARGEST_GRADIENT = 1.0  # norm
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam

TEACHERS = 2  # at a time; a training may take two cores
AHEAD = 2 * TEACHERS  # demonstrations that are begun before the next one is learned
ROUND_SEEDS = 1_000_003  # between the seeds of one round of teaching and the next


class Teacher(Protocol):
    """Whatever shows good plans: `teach`, or the same teachers shared by several trainings."""

    def __call__(
        self, tables: Tables, wishes: Wishes, steps: int, seed: int, start: Templates = ()
    ) -> Demonstration:
        """The best plan of so many steps from a start."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How a training is doing.

    Attributes:
        phase: teach, clone or improve.
        done: units of the phase.
        total: likewise.
        entropy: per decision, in nats; 0 where there is none yet.
        throughput: mean of the update's rollouts as a share of the best known.
    """

    phase: str
    done: int
    total: int
    entropy: float = 0.0
    throughput: float = 0.0


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
        self._names = sorted(self._weights)
        self._values = [self._weights[name] for name in self._names]
        count = sum(value.numel() for value in self._values)
        self._moments = (torch.zeros(count), torch.zeros(count))
        self._steps = 0
        self._updates = 0
        self._round = 0
        self._taught = 0
        self._cloned = 0
        self._environments = tuple(curriculum.environment(one) for one in curriculum.training)
        self._demonstrations: list[Trajectory] = [()] * len(self._environments)
        summaries = np.array([one.space.summary for one in self._environments])
        self._summaries = summaries.astype(np.float32)
        self._buffers = Buffers(summaries)
        self._torch = TorchNetwork(self._weights, uses_film=settings.uses_film)
        self.network: Network = as_network(self._weights, uses_film=settings.uses_film)

    @property
    def is_done(self) -> bool:
        """Whether all updates were made."""
        return self._updates >= self.settings.updates

    def run(self) -> Iterator[TrainingStep]:
        """Go on to the end; between any two results the state may be kept."""
        if self.settings.uses_cloning:
            while self._round <= self.settings.revisions:
                yield from self._teach()
                yield from self._clone()
                self._round += 1
                self._taught = self._cloned = 0
        while not self.is_done:
            yield self._improve()

    # ------------------------------------------------------------------ teachers, and cloning

    def _teach(self) -> Iterator[TrainingStep]:
        """Demonstrate on each composition; from the second round on from the best plan known.

        Teachers work side by side; what they show depends on the composition alone.
        """
        total = len(self._environments)
        begun: deque[Future[Demonstration]] = deque()
        with ThreadPoolExecutor(TEACHERS) as pool:
            while self._taught < total:
                for index in range(self._taught + len(begun), min(total, self._taught + AHEAD)):
                    begun.append(self._begin_demonstration(pool, index))
                demonstration, one = begun.popleft().result(), self._environments[self._taught]
                if demonstration.templates:
                    throughput = one.space.batch / demonstration.seconds
                    trajectory = trajectory_from(one, demonstration.templates)
                    self._buffers.offer(self._taught, throughput, trajectory)
                self._demonstrations[self._taught] = self._buffers.best(self._taught)[1]
                self._taught += 1
                yield TrainingStep("teach", self._taught, total)

    def _begin_demonstration(self, pool: ThreadPoolExecutor, index: int) -> Future[Demonstration]:
        one = self._environments[index]
        seed = 1000 * self.settings.seed + index + ROUND_SEEDS * self._round
        if self._round:
            self._offer_own(index, seed)
        start = templates_from(one, self._buffers.best(index)[1])
        tables, steps = one.pricing.tables, self.settings.teacher_steps
        return pool.submit(self._teacher, tables, one.wishes, steps, seed, start)

    def _offer_own(self, index: int, seed: int) -> None:
        """Offer the best of a group of the policy's own plans to the buffers."""
        episodes = Episodes([self._environments[index]], self.settings.rollouts)
        generator = np.random.default_rng(seed)
        temperatures = self.settings.temperatures
        play(episodes, PolicyActor(self.network, episodes, generator, temperatures))
        best = int(episodes.throughput.argmax())
        self._buffers.offer(index, float(episodes.throughput[best]), episodes.decisions(best))

    def _clone(self) -> Iterator[TrainingStep]:
        known = [index for index, trajectory in enumerate(self._demonstrations) if trajectory]
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
            objective = objective + 0.1 * self.settings.entropy * judged.entropy
            self._ascend(flat_gradient(objective, self._values), self.settings.rate * 2)
            self._cloned += 1
            yield TrainingStep("clone", self._cloned, total, float(judged.entropy.detach()))

    # ------------------------------------------------------------------ GRPO

    def _improve(self) -> TrainingStep:
        settings = self.settings
        picked = self._pick()
        episodes = Episodes([self._environments[i] for i in picked], settings.rollouts)
        records = record(self.network, episodes, self._generator, self._forcing())
        throughput = episodes.throughput
        best = np.array(
            [
                max(self._buffers.best(int(c))[0], throughput[rows].max(), 1e-9)
                for c, rows in self._by_composition(picked)
            ]
        )
        shares = throughput / np.repeat(best, settings.rollouts)
        values = np.where(throughput > 0, shares, -settings.penalty)
        gain = advantages(values, settings.rollouts, settings.best_of)
        for c, rows in self._by_composition(picked):
            for row in range(rows.start, rows.stop):
                self._buffers.offer(int(c), float(throughput[row]), episodes.decisions(row))
        entropy = 0.0
        passed = self._updates / settings.updates
        rate = settings.rate * (1 - (1 - LEAST_RATE) * passed)
        for epoch in range(settings.epochs):
            gradients = []
            for part in np.array_split(np.arange(len(picked)), settings.clusters):
                if not len(part):
                    continue
                first, stop = (
                    int(part[0] * settings.rollouts),
                    int((part[-1] + 1) * settings.rollouts),
                )
                own = records.of_rows(first, stop)
                judged = self._judge(own, picked, settings.rollouts)
                objective = clipped(judged, own, gain, settings.clip)
                objective = objective + settings.entropy * judged.entropy
                gradients.append(flat_gradient(objective, self._values))
                entropy += float(judged.entropy.detach()) / settings.clusters / settings.epochs
            gradient = self._agreed(gradients)
            if epoch == 0 and self._imitates():
                gradient = gradient + self._imitation(picked)
            self._ascend(gradient, rate)
        self._updates += 1
        return TrainingStep(
            "improve", self._updates, settings.updates, entropy, float(np.maximum(0, shares).mean())
        )

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
        rows = settings.together * settings.rollouts
        depth = np.zeros(rows, bool)
        types = np.zeros(rows, bool)
        if settings.uses_forced:
            first, last = settings.forced
            passed = self._updates / settings.updates
            depth = self._generator.random(rows) < first + (last - first) * passed
            types[:: settings.rollouts] = True
        return Forcing(depth, types)

    def _by_composition(self, picked: Ints) -> Iterator[tuple[int, slice]]:
        each = self.settings.rollouts
        for place, c in enumerate(picked):
            yield int(c), slice(place * each, (place + 1) * each)

    def _agreed(self, gradients: list[Tensor]) -> Tensor:
        if self.settings.uses_clusters:
            return without_conflicts(gradients, self._generator)
        return torch.stack(gradients).mean(dim=0)

    def _imitates(self) -> bool:
        settings = self.settings
        return settings.uses_imitation and self._updates % settings.imitation_every == 0

    def _imitation(self, picked: Ints) -> Tensor:
        """The gradient towards the best plans of these compositions and of similar ones."""
        rows = self._buffers.around([int(c) for c in picked])
        if not rows:
            return torch.zeros(sum(value.numel() for value in self._values))
        compositions = np.array([c for c, _, _ in rows])
        records, _ = replay(
            [self._environments[c] for c in compositions],
            [trajectory for _, _, trajectory in rows],
            self.network,
        )
        judged = self._judge(records, compositions, 1)
        objective = imitated(judged, records, np.array([share for _, share, _ in rows]))
        return self.settings.imitation * flat_gradient(objective, self._values)

    # ------------------------------------------------------------------ weights

    def _judge(self, records: Records, compositions: Ints, each: int) -> Judged:
        return judge(self._torch, records, torch.from_numpy(self._summaries[compositions]), each)

    def _ascend(self, gradient: Tensor, rate: float) -> None:
        """One step of Adam towards a larger objective."""
        norm = float(gradient.norm())
        if norm > LARGEST_GRADIENT:
            gradient = gradient * (LARGEST_GRADIENT / norm)
        self._steps += 1
        first, second = self._moments
        first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        mean = first / (1 - BETAS[0] ** self._steps)
        spread = (second / (1 - BETAS[1] ** self._steps)).sqrt()
        step = rate * mean / (spread + EPSILON)
        at = 0
        with torch.no_grad():
            for value in self._values:
                value += step[at : at + value.numel()].reshape(value.shape)
                at += value.numel()

    # ------------------------------------------------------------------ to be kept, and taken up

    def state(self) -> tuple[dict[str, np.typing.NDArray[np.float32]], dict[str, Any]]:
        """(arrays, plain data) from which the training can go on."""
        arrays = {f"weight.{name}": value for name, value in self.network.weights.items()}
        arrays |= {f"moment.{i}": np.asarray(m.numpy()) for i, m in enumerate(self._moments)}
        return arrays, {
            "steps": self._steps,
            "updates": self._updates,
            "round": self._round,
            "taught": self._taught,
            "cloned": self._cloned,
            "demonstrations": self._demonstrations,
            "generator": self._generator.bit_generator.state,
            "buffers": self._buffers.to_json(),
        }

    def restore(
        self, arrays: dict[str, np.typing.NDArray[np.float32]], data: dict[str, Any]
    ) -> None:
        """Take up what `state` gave."""
        with torch.no_grad():
            for name, value in self._weights.items():
                value.copy_(torch.from_numpy(arrays[f"weight.{name}"]))
            for i, moment in enumerate(self._moments):
                moment.copy_(torch.from_numpy(arrays[f"moment.{i}"]))
        self._steps, self._updates = data["steps"], data["updates"]
        self._round, self._taught = data["round"], data["taught"]
        self._cloned = data["cloned"]
        self._demonstrations = [
            read_trajectory(trajectory) for trajectory in data["demonstrations"]
        ]
        self._generator.bit_generator.state = data["generator"]
        self._buffers.restore(data["buffers"])
