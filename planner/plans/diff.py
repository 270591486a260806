"""Difference between two plans: templates, layers by stage, and bytes by node pair.

A GPU keeps what it holds and fetches the rest: from its own node if some GPU there holds it, else
from the holder's node that has sent least.  The runtime chooses senders piece by piece by the same
rule, so what each node receives is the same, and from where it comes nearly so.
Invariant: the bytes of all pairs sum to `planner.plans.movement.bytes_to_move`, as if every node of
the first plan were still there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from planner.errors import InvalidPlan
from planner.model.shape import ModelShape
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Plan, faults
from planner.plans.ranks import RankMap
from planner.plans.regions import Mask, regions_of, state_refinement
from planner.plans.state_rule import OWNED, element_bytes

Fate = Literal["lost", "gained", "changed", "kept"]
Gpu = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """Fate of one template."""

    fate: Fate  # lost, gained, changed (same GPU types and TP degrees, another fill), or kept
    before: FilledTemplate | None  # the template in the first plan; None if it is gained
    after: FilledTemplate | None  # the template in the second plan; None if it is lost


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Difference between two plans."""

    before: str  # digest of the first plan
    after: str  # digest of the second
    templates: tuple[TemplateChange, ...]  # of both, each once
    # {(from node, to node): bytes}; a node may send to itself, from GPU to GPU
    moves: Mapping[tuple[str, str], int]
    # samples per second of both, where both files state them
    throughputs: tuple[float, float] | None = None

    @property
    def bytes_to_move(self) -> int:
        """Over all pairs."""
        return sum(self.moves.values())

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data."""
        speeds = self.throughputs or (None, None)
        return {
            "from": {"digest": self.before, "throughput_samples_s": speeds[0]},
            "to": {"digest": self.after, "throughput_samples_s": speeds[1]},
            "templates": [
                {
                    "change": row.fate,
                    "from": None if row.before is None else row.before.to_json(),
                    "to": None if row.after is None else row.after.to_json(),
                }
                for row in self.templates
            ],
            "bytes_to_move": self.bytes_to_move,
            "moves": [
                {"from": source, "to": target, "bytes": size}
                for (source, target), size in sorted(self.moves.items())
            ],
        }


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> PlanDiff:
    """Compare two plan files, as `heddle plan --output json` prints them.

    Raises:
        InvalidPlan: one is no plan, does not name its workload, or they train different models.
        InvalidWorkload: a workload is wrong.
    """
    workloads = _workload(one, "first"), _workload(other, "second")
    model = workloads[0].model
    if workloads[1].model != model:
        raise InvalidPlan(
            "the two plans train different models; compare plans of one model", code="Mismatch"
        )
    before, after = Plan.from_json(one), Plan.from_json(other)
    for name, plan, workload in zip(("first", "second"), (before, after), workloads, strict=True):
        if wrong := faults(plan, workload):
            raise InvalidPlan(f"the {name} plan is no plan: {wrong[0]}", code="Mismatch")
    speeds = [data.get("throughput_samples_s") for data in (one, other)]
    known = [
        float(speed)
        for speed in speeds
        if isinstance(speed, int | float) and not isinstance(speed, bool) and 0 < speed < 1e15
    ]
    return PlanDiff(
        before.digest,
        after.digest,
        template_changes(before, after),
        moves(model, before, after),
        (known[0], known[1]) if len(known) == 2 else None,
    )


def _workload(data: Mapping[str, Any], which: str) -> Workload:
    if "workload" not in data:
        raise InvalidPlan(
            f"the {which} plan does not name its workload, so nobody knows how large its pieces "
            f"are; `heddle plan` writes it as JSON",
            code="Missing",
        )
    return Workload.from_json(data["workload"])


def template_changes(before: Plan, after: Plan) -> tuple[TemplateChange, ...]:
    """Fate of each template: equal ones are kept, then those of equal shape are paired."""
    left, right = list(before.templates), list(after.templates)
    found: list[TemplateChange] = []
    for same in (_filled, _shape):
        for old in tuple(left):
            new = next((row for row in right if same(row) == same(old)), None)
            if new is not None:
                found.append(TemplateChange("kept" if old == new else "changed", old, new))
                left.remove(old)
                right.remove(new)
    found += [TemplateChange("lost", old, None) for old in left]
    return (*found, *(TemplateChange("gained", None, new) for new in right))


def _filled(template: FilledTemplate) -> object:
    return template.stages, template.micro_batch


def _shape(template: FilledTemplate) -> object:
    return tuple((stage.gpu_type, stage.tp) for stage in template.stages)


def moves(model: ModelShape, before: Plan, after: Plan) -> dict[tuple[str, str], int]:
    """Bytes of state that go from node to node: {(from, to): bytes}."""
    regions = regions_of(model, state_refinement([before, after]))
    sizes = [regions.numel * element_bytes(parts) for parts, _ in OWNED.entries]
    parts_bytes = np.concatenate(sizes).tolist()  # of each region, entry by entry
    held: dict[Gpu, Mask] = {}
    holders: list[list[str]] = [[] for _ in parts_bytes]
    for seat in RankMap.of(before).seats:
        mine = held[seat.node, seat.gpu] = OWNED.of_seat(regions, seat).ravel()
        for index in np.flatnonzero(mine).tolist():
            if seat.node not in holders[index]:
                holders[index].append(seat.node)
    sent: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for seat in RankMap.of(after).seats:
        needed = OWNED.of_seat(regions, seat).ravel()
        if (seat.node, seat.gpu) in held:
            needed &= ~held[seat.node, seat.gpu]
        for index in np.flatnonzero(needed).tolist():
            source = seat.node
            if source not in holders[index]:
                source = min(holders[index], key=lambda node: (sent[node], node))
                sent[source] += parts_bytes[index]
            found[source, seat.node] += parts_bytes[index]
    return dict(found)
