"""One demo: a run of the demo's job on emulated GPUs, and the same steps in one plain process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.demo.job import MODELS, demo_job, text_folder
from heddle.demo.scenario import JOINERS
from heddle.local.child import run_heddle
from heddle.train.result import RunFacts, build_result
from heddle.train.run import LocalRun, RunOptions, engine_name
from heddle.train.script import Event
from heddle_operator.apis.data import TEXT_BYTES
from planner.cluster.composition import Composition
from planner.profiles.profile import load_profile

EVALUATIONS = 1000  # of the search: about half a second, and the same plan on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Choices of a user.

    Attributes:
        cooldown_s: between a change and one that only makes the job faster.
    """

    nodes: Composition
    script: tuple[Event, ...]
    steps: int
    seed: int
    evaluations: int = EVALUATIONS
    is_patient: bool = False
    cooldown_s: float = 0.0
    rank_entry: str | None = None
    model: str = MODELS[0]

    def for_run(self) -> RunOptions:
        """What is run where; see `RunOptions`."""
        return RunOptions(
            job=demo_job(self.steps, self.seed, self.cooldown_s, self.model),
            nodes=self.nodes,
            script=self.script,
            joiners=JOINERS,
            profile=load_profile(self.model),
            seed=self.seed,
            evaluations=self.evaluations,
            is_patient=self.is_patient,
            data_options=("--input", str(text_folder()), "--max-bytes", str(TEXT_BYTES)),
            rank_entry=self.rank_entry,
        )


class DemoRun(LocalRun):
    """A run whose losses are compared with those of one process.

    Args:
        options: what a user chose.
        directory: for data, logs and the token; the caller removes it.
        say: gets each sentence on what is going on.
    """

    def __init__(self, options: DemoOptions, directory: Path, say: Callable[[str], None]) -> None:
        super().__init__(options.for_run(), directory, say)

    async def end(self) -> None:
        """Train the same steps in one process of plain torch."""
        if not self.recorder.step:
            return
        self._say("one process of plain torch trains the same steps, to compare the losses")
        training = self._directory / "training.json"
        losses = self._directory / "reference.json"
        training.write_text(self.job.training.model_dump_json(), encoding="utf-8")
        steps = str(self.recorder.step)
        where = ("--training", str(training), "--steps", steps, "--output-path", str(losses))
        await run_heddle(
            ("worker", "reference", *where), "the comparison failed", self._environment
        )
        self.reference_losses = tuple(json.loads(losses.read_text(encoding="utf-8")))

    def result(self) -> dict[str, Any]:
        """The run as plain data; call it after `close`."""
        facts = RunFacts(
            restart_s=self.restart_s,
            reference_losses=self.reference_losses,
            orphan_processes=self.end_orphans(),
            engine=engine_name(),
            seed=self.options.seed,
            evaluations=self.options.evaluations,
            emulated=True,
        )
        return build_result(self.job, self.recorder, self.profile, facts)
