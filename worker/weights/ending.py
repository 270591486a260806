"""A rank's work with its weights when all steps are trained.

Every rank that speaks for the model writes its part.  Where all of them see one folder, rank 0 then
makes of the parts what the user was promised: one folder that `transformers` loads.
Source: docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from planner.model.shape import ModelShape
from planner.plans.ranks import Seat
from worker.contract import KeptAs, TrainingSpec
from worker.weights.final_weights import Ranks, described, own_files, speaks
from worker.weights.merging import PARTS, Merge, mark_of
from worker.weights.one_folder import all_see
from worker.weights.saving import Mark, Step, Write


class Ending(NamedTuple):
    """The end of a job on one rank.

    Attributes:
        steps: what this rank does; none if another pipeline speaks for the model.
        kept_as: what the output folder will hold.
    """

    steps: tuple[Step, ...]
    kept_as: KeptAs


def ending(
    model: ModelShape,
    seats: Sequence[Seat],
    seat: Seat,
    weights: Mapping[str, torch.Tensor],
    spec: TrainingSpec,
    step: int,
    ranks: Ranks,
) -> Ending:
    """This rank's task; a collective of all ranks of the plan.

    Arguments are those of `own_files`; `spec` has an output, and `step` steps are trained.
    """
    assert spec.output is not None
    output = Path(spec.output)
    kept_as: KeptAs = (
        "folder" if all_see(output, seat.rank, speaks(model, seat), ranks) else "parts"
    )
    files = own_files(model, seats, seat, weights, described(model, spec, step), ranks)
    if files is None:
        return Ending((), kept_as)
    folder = output / PARTS
    steps: list[Step] = [Write(folder, file) for file in files]
    part = files[0]
    assert part.digest is not None  # it was read for it
    steps.append(Mark(folder / mark_of(part.name, part.digest.hex())))
    if seat.rank == 0 and kept_as == "folder":
        steps.append(Merge(output))
    return Ending(tuple(steps), kept_as)
