"""A run whose steps take much longer than predicted corrects its own times, and plans by them.

Each kind of layer gets a factor on the times of the profile.  The ranks' own seconds of computing
tell it: one equation a rank, and as a plan may give all ranks the same kinds, what they leave open
is the factor that all kinds share.
Invariant: the measured profile is not changed; a factor is of this run, and in its folder.
Source: ridge regression towards the common factor (Hoerl and Kennard, 1970).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from heddle.train.recorder import Recorder
from heddle_operator.state.speeds.type_speed import LATE
from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.cost.simulation import simulated_seconds
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.profiles.profile import LINKS_FILE, Profile

SAME = 1.1  # a factor up to here is none
RIDGE = 0.1  # how much a kind's own factor is held to that of all kinds
TIMES = ("forward_s", "backward_s", "attention_s")


@dataclass(frozen=True, slots=True)
class Correction:
    """Findings of a run about its own times.

    Attributes:
        epoch: that was measured.
        step: completed steps then.
        step_s: of the epoch, the median.
        predicted_step_s: as the plan was priced.
        factors: on the profile's times, by kind of layer.
    """

    epoch: int
    step: int
    step_s: float
    predicted_step_s: float
    factors: Mapping[str, float]

    @property
    def changes(self) -> bool:
        """Whether the layers are what took longer."""
        return max(self.factors.values(), default=1.0) > SAME

    def __str__(self) -> str:
        said = f"a step takes {self.step_s:.3g} s, {self.predicted_step_s:.3g} s were predicted"
        if not self.changes:
            return f"{said}; the layers are as fast as measured, so waiting and sums take the rest"
        times = ", ".join(f"{kind} by {factor:.2g}" for kind, factor in self.factors.items())
        return f"{said}; this run multiplies the times of its profile: {times}"


def correction_of(
    workload: Workload, recorder: Recorder, profile: Profile, before: Sequence[Correction]
) -> Correction | None:
    """Findings of the newest epoch's steps, once all of its ranks have measured themselves.

    Args:
        workload: that is trained.
        recorder: of the run.
        profile: that plans are priced by now.
        before: corrections of earlier epochs; an epoch corrects the run once.
    """
    record = next((r for r in reversed(recorder.epochs) if recorder.steps_of(r.epoch)), None)
    if record is None or any(known.epoch == record.epoch for known in before):
        return None
    compute_s, step_s = recorder.computing.get(record.epoch, {}), recorder.step_s(record.epoch)
    if step_s is None or len(compute_s) < record.plan.gpus:
        return None
    priced = cost_of(record.plan, workload, record.composition, profile)
    predicted_s = simulated_seconds(priced)
    if step_s <= LATE * predicted_s:
        return None
    factors = kind_factors(record.plan, workload, record.composition, profile, compute_s)
    return Correction(record.epoch, recorder.step, step_s, predicted_s, factors)


def write_correction(output: Path, run: str, found: Correction) -> None:
    """Keep what was found in the run's folder; a disk that refuses costs the line alone."""
    with contextlib.suppress(OSError):
        folder = output / "measurements"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "corrections.jsonl").open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"run": run, **asdict(found), "factors": dict(found.factors)}) + "\n"
            )


def kind_factors(
    plan: Plan,
    workload: Workload,
    composition: Composition,
    profile: Profile,
    compute_s: Mapping[int, float],
) -> dict[str, float]:
    """How many times longer than in the profile the layers of each kind take.

    Args:
        plan: that was measured.
        workload: that it trains.
        composition: supplies the nodes' speeds.
        profile: whose times are compared.
        compute_s: seconds of forward and backward passes in a step, by rank.
    """
    kinds: list[str] = []
    rows, times = [], []
    speeds = {node.name: node.speed_factor for node in composition.nodes}
    for rank, seat in enumerate(RankMap.of(plan).seats):
        if rank not in compute_s:
            continue
        template = seat.pipeline.template
        stage = template.stages[seat.stage]
        row: dict[str, float] = {}
        for kind, count in workload.model.kinds_of(seat.layers.start, seat.layers.stop).items():
            cost = profile.layer_cost(kind, stage.gpu_type, stage.tp, template.micro_batch)
            again_s = cost.recompute_s(stage.recompute) if kind not in ("embedding", "head") else 0
            seconds = cost.forward_s + cost.backward_s + cost.tp_communication_s + again_s
            row[kind] = count * seconds * seat.pipeline.num_micro_batches / speeds[seat.node]
            kinds += [] if kind in kinds else [kind]
        rows.append(row)
        times.append(compute_s[rank])
    if not rows:
        return {}
    predicted = np.array([[row.get(kind, 0.0) for kind in kinds] for row in rows])
    measured = np.array(times)
    common = float(np.median(measured / predicted.sum(axis=1)))
    # Relative to what each rank measured, so that a rank with little work counts as much.
    left = predicted / measured[:, None]
    right = 1 - left.sum(axis=1) * common
    ridge = RIDGE * np.eye(len(kinds))
    own = common + np.linalg.solve(left.T @ left + ridge, left.T @ right)
    least, most = 0.5 * common, 2 * common
    return {kind: float(min(most, max(least, f))) for kind, f in zip(kinds, own, strict=True)}


def corrected_profile(folder: Path, target: Path, model: str, factors: Mapping[str, float]) -> Path:
    """A copy of a folder of profiles with the times of each kind of layer so many times longer."""
    shutil.copytree(folder, target)
    for file in (target / model).glob("*.json"):
        if file.name == LINKS_FILE:
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        for row in content["layers"]:
            for name in TIMES:
                if name in row:
                    row[name] *= factors.get(row["kind"], 1.0)
        file.write_text(json.dumps(content), encoding="utf-8")
    return target
