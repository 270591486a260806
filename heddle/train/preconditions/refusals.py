"""Refusals of a run before it starts, beyond the checks of its job and its options.

`heddle train --check` and the run ask the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from heddle.train.checkpoints import has_checkpoint, path_of
from heddle.train.choices import Choices
from heddle.train.preconditions.beginning import beginning
from heddle.train.preconditions.checkpoint_folder import why_taken
from heddle.train.preconditions.output_folder import ANOTHER, look
from heddle.train.script import check_nodes
from heddle_operator.apis.errors import Mistake
from heddle_operator.apis.heddlejob import HeddleJob
from planner.cost.evaluate import cost_of
from planner.errors import HeddleError
from planner.model.shape import ModelShape
from planner.model.tensors import model_numel
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile

FP32_BYTES = 4
COPIES = 2  # of the weights, while the parts of all ranks become one folder


def refusals(choices: Choices, *, is_fresh: bool, reads_weights: bool) -> tuple[Mistake, ...]:
    """Everything that is refused.

    Args:
        choices: of the user.
        is_fresh: what an earlier run left in the output folder goes.
        reads_weights: every number and text that the job starts from is looked at, too.
    """
    return tuple(_refusals(choices, is_fresh=is_fresh, reads_weights=reads_weights))


def weights_bytes(model: ModelShape) -> int:
    """Bytes of the final weights, which are fp32."""
    return FP32_BYTES * model_numel(model)


def check_priced(choices: Choices, profile: Profile) -> None:
    """Refuse a given plan that the profile cannot price.

    Raises:
        UnprofiledConfiguration: the profile lacks a row that the plan needs.
    """
    if choices.plan is not None and choices.plan.plan is not None:
        cost_of(choices.plan.plan, choices.job.workload, choices.nodes, profile)


def _refusals(choices: Choices, *, is_fresh: bool, reads_weights: bool) -> Iterator[Mistake]:
    job = choices.job
    yield from _unpriced(choices)
    if not choices.is_measured:
        try:
            profile = find_profile(job.workload)
            check_nodes(choices.nodes, choices.script, profile)
            profile.require(job.workload)
            check_priced(choices, profile)
        except HeddleError as error:
            yield Mistake.of(error)
    if job.spec.output is not None:
        folder = Path(job.spec.output.path)
        removed_bytes = 0
        try:
            use = look(folder, is_fresh, job.name if has_checkpoint(job) else "")
            removed_bytes = sum(path.stat().st_size for path in use.removable) if is_fresh else 0
            if use.refusal:
                yield Mistake(use.refusal, "Taken", "spec.output.path")
            elif taken := why_taken(path_of(job)):
                yield Mistake(taken, "Taken", "spec.checkpoint.path")
        except HeddleError as error:
            yield Mistake.of(error)
        yield from _room(folder, job.workload.model, removed_bytes)
    try:
        beginning(job, is_fresh=is_fresh, makes_data=reads_weights)
    except HeddleError as error:
        yield Mistake.of(error)
    if reads_weights:
        yield from _not_finite(job)


def _unpriced(choices: Choices) -> Iterator[Mistake]:
    """Whether each node has a price, where money decides."""
    if choices.job.spec.planner.objective != "Cost":
        return
    for node in (*choices.nodes.nodes, *choices.joiners):
        if node.price is None:
            said = (
                f"spec.planner.objective is Cost, and node {node.name!r} has no price; add "
                "`price`, its money per hour, to the file of --nodes, or write Throughput"
            )
            yield Mistake(said, "PriceMissing", "price")
            return


def _room(folder: Path, model: ModelShape, removed_bytes: int) -> Iterator[Mistake]:
    """Whether the final weights fit on the disk as it is now."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    needed, free = COPIES * weights_bytes(model), shutil.disk_usage(there).free + removed_bytes
    if needed > free:
        said = (
            f"the final weights need {needed / 1e6:,.1f} MB in {folder}, {COPIES} times their size "
            f"while they are written, and {free / 1e6:,.1f} MB are free there; make room, or "
            f"{ANOTHER}"
        )
        yield Mistake(said, "Unwritable", "spec.output.path")


def _not_finite(job: HeddleJob) -> Iterator[Mistake]:
    """Whether each number that the job starts from is finite."""
    spec = job.training
    if spec.weights is None:
        return
    from worker.weights.hugging_face.reading import open_weights
    from worker.weights.hugging_face.tensors import family_of

    model, family = job.workload.model, family_of(spec.config or {})
    fault = open_weights(Path(spec.weights), model, family).not_finite()
    if fault is not None:
        yield Mistake.of(fault)
