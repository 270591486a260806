"""One training from its first step to the policy's files.

Invariant: what is written does not depend on how often the training was killed and resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from planner.errors import Infeasible
from planner.policy.card import PolicyCard
from planner.policy.schema import HEADS
from planner.policy.weights import digest_of, weights_content, write_policy
from planner.training.checkpoint import keep_state, take_up
from planner.training.checkpoint_file import CHECKPOINT
from planner.training.curriculum import Curriculum
from planner.training.judge import ROLLOUTS, Judge
from planner.training.settings import TrainingSettings
from planner.training.teacher import teach
from planner.training.torch_network import as_network
from planner.training.trainer import TEMPERATURES, Teacher, Trainer, TrainingStep

JUDGED_EVERY = 50  # updates
CARD_FIELDS = ("groups", "seed", "sees_batch", "uses_film")  # that the card names itself


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
        self._judge = Judge(curriculum, settings.teacher_steps)
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
        self.keep()  # from here on it can be resumed
        kept_s = time.perf_counter()
        if not self._judge.reference.any():
            (self._folder / CHECKPOINT).unlink()
            raise Infeasible(
                f"none of the {len(self._curriculum.validation)} generated compositions holds "
                f"{self._curriculum.model.name}, so that nothing could be learned; train over GPU "
                f"types with more memory"
            )
        for step in self._trainer.run():
            is_last = step.done == step.total
            if step.phase == "improve" and (is_last or step.done % JUDGED_EVERY == 0):
                self._look()
            show(replace(step, best=self._best_percent, last=self._last_percent))
            if time.perf_counter() - kept_s > keep_every_s:
                self.keep()
                kept_s = time.perf_counter()
        if self._best is None:
            self._look()
        card, content = self._finished(commit)
        write_policy(self._folder, card, content)
        (self._folder / CHECKPOINT).unlink(missing_ok=True)
        return card

    @property
    def _questions(self) -> str:
        curriculum = self._curriculum
        return f"{curriculum.digest} {curriculum.profile.digest} {curriculum.schema.digest}"

    def _look(self) -> None:
        self._last_percent = float(self._judge.percent(self._trainer.network, ROLLOUTS[0]).mean())
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
            evaluation=self._judge.evaluation(network),
            seconds={"clock": round(clock, 1), "processor": round(processor, 1)},
            actions=HEADS,
        )
        return card, content
