"""A user's job as a run: which options it runs with, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heddle.train.checkpoints import (
    begun_from_step,
    failed_save,
    going_on_from,
    saved_state,
)
from heddle.train.choices import Choices
from heddle.train.measured import data_options, measured_peak
from heddle.train.preconditions.refusals import check_priced
from heddle.train.result import RunFacts, build_result
from heddle.train.run import LocalRun, RunOptions, engine_name
from heddle.train.unsaved import whole_parts
from planner.profiles.generator import find_profile

LOGS = "logs"  # under the output folder
PATIENCE_S = 900.0  # a step of a large model takes long on a CPU; an epoch without one is halted


def run_options(
    choices: Choices, profiles: Path | None, seed: int, *, has_keys: bool = False
) -> RunOptions:
    """A job, its nodes and its folders.

    Args:
        choices: of the user.
        profiles: of this machine; None: the ranks are emulated.
        seed: of the search.
        has_keys: a user adds nodes by keys.

    Raises:
        UnprofiledConfiguration: there is no profile of the model, or no price of the given plan.
    """
    output = choices.job.spec.output
    profile = find_profile(choices.job.workload, profiles)
    check_priced(choices, profile)
    return RunOptions(
        job=choices.job,
        nodes=choices.nodes,
        script=choices.script,
        joiners=choices.joiners,
        profile=profile,
        profiles=profiles,
        emulates=choices.emulates,
        seed=seed,
        patience_s=PATIENCE_S,
        peak_flops_s=measured_peak(profiles) if profiles else None,
        logs=Path(output.path) / LOGS if output else None,
        plan=choices.plan,
        data_options=data_options(),
        ends_without_nodes=not has_keys,
        begins_at=choices.begins_at,
    )


class LocalJob(LocalRun):
    """A run of a user's job."""

    SAVES = True

    def result(self) -> dict[str, Any]:
        """The run as plain data; call it after `close`."""
        options = self.options
        facts = RunFacts(
            restart_s=self.restart_s,
            reference_losses=None,
            orphan_processes=self.end_orphans(),
            engine=engine_name(),
            seed=options.seed,
            evaluations=options.evaluations,
            emulated=options.emulates,
        )
        found = build_result(self.job, self.recorder, options.profile, facts)
        output = self.job.spec.output
        kept = output is not None and self.recorder.phase == "Complete"
        folder = Path(output.path).resolve() if output else None
        parts = whole_parts(folder) if folder and not kept else None
        saves = self.recorder.saves.values()
        failed = failed_save(saves)
        return {
            **found,
            "output": str(folder) if folder and kept else None,
            "parts": str(parts) if parts else None,
            "checkpoint": saved_state(self.job, saves),
            "begun_from_step": begun_from_step(self.recorder),
            "goes_on_from": going_on_from(self.job, self.recorder),
            "failed_save": {"step": failed.step, "error": failed.error} if failed else None,
        }
