"""One training from its first step to the policy's files.

Invariant: what is written does not depend on how often the training was killed and resumed.
Source: design, section 2 ("Learned policy").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from planner.errors import Infeasible
from planner.estimator.tables import Floats
from planner.policy.card import PolicyCard
from planner.policy.environment import Episodes
from planner.policy.network import Network
from planner.policy.rollouts import PolicyActor, play
from planner.policy.schema import HEADS
from planner.policy.weights import digest_of, weights_content, write_policy
from planner.training.checkpoint import CHECKPOINT, keep_state, take_up
from planner.training.curriculum import Curriculum
from planner.training.settings import TrainingSettings
from planner.training.teacher import teach
from planner.training.torch_network import as_network
from planner.training.trainer import TEMPERATURES, Teacher, Trainer, TrainingStep

JUDGED_EVERY = 50  # updates
CARD_FIELDS = ("groups", "seed", "sees_batch", "uses_film")  # that the card names itself
ROLLOUTS = (16, 128)  # of which the best is taken, in the card


class Training:
    """A trainer, what it is judged by, and its files."""

    def __init__(
        self,
        curriculum: Curriculum,
        settings: TrainingSettings,
        folder: Path,
        teacher: Teacher = teach,
    ) -> None:
        """Prepare; nothing is written yet."""
        self._settings, self._curriculum, self._folder = settings, curriculum, folder
        self._trainer = Trainer(curriculum, settings, teacher)
        self._judged_by = tuple(curriculum.environment(one) for one in curriculum.validation)
        self._reference: Floats = np.zeros(0)
        self._best: Tensor | None = None
        self._best_percent = self._last_percent = 0.0
        self._seconds = (0.0, 0.0)
        self._begun = (time.perf_counter(), time.process_time())

    def resume(self) -> None:
        """Take up the state on disk.

        Raises:
            InvalidPolicy: there is none of this training.
        """
        state = take_up(self._folder, self._settings, self._questions)
        self._trainer.restore(state["trainer"])
        self._best = state["best"]
        self._best_percent, self._last_percent = state["percents"]
        self._seconds = state["seconds"]

    def keep(self) -> None:
        """Write the state, so that the training can be resumed from here."""
        state = {
            "trainer": self._trainer.state(),
            "best": self._best,
            "percents": (self._best_percent, self._last_percent),
            "seconds": self._spent(),
        }
        keep_state(self._folder, state, self._settings, self._questions)

    def run(
        self, show: Callable[[TrainingStep], None], commit: str, keep_every_s: float
    ) -> PolicyCard:
        """Train to the end, and write weights and card; `show` is told of every step.

        Raises:
            Infeasible: the model fits on none of the compositions that it would be judged by.
        """
        kept_s = time.perf_counter()
        self._reference = self._references()
        if not self._reference.any():
            raise Infeasible(
                f"none of the {len(self._judged_by)} generated compositions holds "
                f"{self._curriculum.model.name}, so that nothing could be learned; train over GPU "
                f"types with more memory"
            )
        for step in self._trainer.run():
            is_last = step.done == step.total
            if step.phase == "improve" and (is_last or step.done % JUDGED_EVERY == 0):
                self._judge()
            show(replace(step, best=self._best_percent, last=self._last_percent))
            if time.perf_counter() - kept_s > keep_every_s:
                self.keep()
                kept_s = time.perf_counter()
        if self._best is None:
            self._judge()
        card, content = self._finished(commit)
        write_policy(self._folder, card, content)
        (self._folder / CHECKPOINT).unlink(missing_ok=True)
        return card

    @property
    def _questions(self) -> str:
        curriculum = self._curriculum
        return f"{curriculum.digest} {curriculum.profile.digest} {curriculum.schema.digest}"

    def _references(self) -> Floats:
        """[E] throughput of a teacher's annealing on each question of the validation."""
        steps = 2 * self._settings.teacher_steps
        taught = [teach(one.pricing.tables, one.limits, steps, 7) for one in self._judged_by]
        batches = np.array([one.space.batch for one in self._judged_by])
        throughputs: Floats = batches / np.array([shown.seconds for shown in taught])
        return throughputs

    def _percent(self, network: Network, rollouts: int) -> Floats:
        """[E] best of so many rollouts, in per cent of the reference."""
        episodes = Episodes(self._judged_by, rollouts)
        play(episodes, PolicyActor(network, episodes, np.random.default_rng(1), TEMPERATURES))
        known = self._reference > 0
        percents: Floats = 100 * episodes.best[known] / self._reference[known]
        return percents

    def _judge(self) -> None:
        self._last_percent = float(self._percent(self._trainer.network, ROLLOUTS[0]).mean())
        if self._best is None or self._last_percent > self._best_percent:
            self._best_percent = self._last_percent
            self._best = self._trainer.weights.clone()

    def _spent(self) -> tuple[float, float]:
        spent, begun = self._seconds, self._begun
        clock = spent[0] + time.perf_counter() - begun[0]
        return clock, spent[1] + time.process_time() - begun[1]

    def _finished(self, commit: str) -> tuple[PolicyCard, bytes]:
        curriculum, schema, settings = self._curriculum, self._curriculum.schema, self._settings
        assert self._best is not None
        network = as_network(self._best, schema, uses_film=settings.uses_film)
        content = weights_content(network.weights)
        clock, processor = self._spent()
        trained_on = [one.composition for one in curriculum.training]
        card = PolicyCard(
            model=curriculum.model.name,
            types=curriculum.types,
            tp_degrees=schema.tp_degrees,
            d_max=schema.d_max,
            t_max=schema.t_max,
            most_types=max(len(one.gpu_types) for one in trained_on),
            most_node_gpus=max(node.gpus for one in trained_on for node in one.nodes),
            sees_batch=settings.sees_batch,
            uses_film=settings.uses_film,
            temperatures=TEMPERATURES,
            features=schema.digest,
            weights=digest_of(content),
            training_set=curriculum.digest,
            num_compositions=len(trained_on),
            profile=curriculum.profile.digest,
            groups=settings.updates * settings.together,
            seed=settings.seed,
            commit=commit,
            settings={n: v for n, v in asdict(settings).items() if n not in CARD_FIELDS},
            evaluation=self._evaluation(network),
            seconds={"clock": round(clock, 1), "processor": round(processor, 1)},
            actions=HEADS,
        )
        return card, content

    def _evaluation(self, network: Network) -> dict[str, Any]:
        percents = {n: self._percent(network, n) for n in ROLLOUTS}
        return {
            "on": f"{len(self._judged_by)} generated compositions that were not trained on",
            "reference": f"an annealing of {2 * self._settings.teacher_steps} steps each",
        } | {
            f"best_of_{n}_percent": {
                "mean": round(float(found.mean()), 2),
                "worst": round(float(found.min()), 2),
            }
            for n, found in percents.items()
        }
