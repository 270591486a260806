"""The best plan ever found for each model on each composition: what other plans are measured by.

Invariants: a reference is a plan that runs (no fault, fits in memory) and its throughput is the
evaluator's of today; it is replaced only by a faster one.  The file is written after every search,
so that a run can be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.cluster.composition import Composition
from planner.errors import HeddleError, InvalidRequest
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.profiles.profile import Profile
from planner.search.candidate import Evaluator
from planner.training.composition_sets import ListedComposition
from planner.wording import kind_of, reason_of

EQUAL = 1e-9  # prices that differ by less, relatively, are the same
_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The best plan known."""

    model: str  # its name
    case: str  # name of the composition
    composition: str  # its text
    batch: int  # samples a step
    throughput_samples_s: float = 0.0  # by the evaluator; 0 as long as no plan is known
    found_by: str = ""  # which search found it
    searched: tuple[str, ...] = ()  # what was tried
    plan: Plan | None = None  # None as long as none is known

    def to_json(self) -> dict[str, Any]:
        """A row of the file."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "plan"}
        return row | {"plan": None if self.plan is None else compact(self.plan)}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Reference:
        """Read a row of the file."""
        plan = None if row["plan"] is None else expanded(row["plan"])
        return Reference(**row | {"searched": tuple(row["searched"]), "plan": plan})

    def at_todays_cost(self, workload: Workload, profile: Profile) -> Reference:
        """This one, its plan priced again.

        Where the price has changed, what was searched is forgotten, and a plan that cannot run any
        more as well.
        """
        now = 0.0
        if self.plan is not None:
            composition = Composition.from_text(self.composition)
            found = Evaluator(workload=workload, composition=composition, profile=profile).as_it_is(
                self.plan
            )
            now = 0.0 if found is None else found.cost.throughput_samples_s
        if abs(now - self.throughput_samples_s) <= EQUAL * self.throughput_samples_s:
            return self
        plan = self.plan if now else None
        return replace(self, throughput_samples_s=now, plan=plan, searched=())


def compact(plan: Plan) -> dict[str, Any]:
    """The JSON of a plan, but each placed stage as `node:gpu,gpu`, in the plan's order."""
    where = [f"{p.node}:{','.join(map(str, p.gpus))}" for p in plan.placement]
    return plan.to_json() | {"placement": where}


def expanded(row: dict[str, Any]) -> Plan:
    """The plan of a compact row; its digest is checked."""
    keys = [
        (t, r, s)
        for t, template in enumerate(row["templates"])
        for r in range(template["replicas"])
        for s in range(len(template["stages"]))
    ]
    placement = []
    for (t, r, s), text in zip(keys, row["placement"], strict=True):
        node, _, gpus = text.partition(":")
        devices = [int(gpu) for gpu in gpus.split(",")]
        placement.append({"template": t, "replica": r, "stage": s, "node": node, "gpus": devices})
    return Plan.from_json(row | {"placement": placement})


@dataclass(slots=True)
class References:
    """All that are known, by (model, composition's text, batch)."""

    rows: dict[_Key, Reference] = field(default_factory=dict)  # what is known
    file: Path | None = None  # that they are kept in; None: they are lost with the process

    @staticmethod
    def read(file: Path | None) -> References:
        """References of a file; none if there is no such file yet.

        Raises:
            InvalidRequest: it is no file of references.
        """
        if file is None or not file.exists():
            return References({}, file)
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(data, list):
                raise InvalidRequest(f"it holds no list of references but {kind_of(data)}")
            rows = [Reference.from_json(row) for row in data]
        except (OSError, ValueError, TypeError, KeyError, RecursionError, HeddleError) as error:
            raise InvalidRequest(
                f"references file {file} cannot be read: {reason_of(error)}; give a file that "
                f"this command wrote, or one that does not exist yet"
            ) from None
        return References({(r.model, r.composition, r.batch): r for r in rows}, file)

    def save(self) -> None:
        """Write the file, one row a line.

        Raises:
            InvalidRequest: it cannot be written.
        """
        if self.file is None:
            return
        ordered = sorted(self.rows.values(), key=lambda r: (r.model, r.case, r.batch))
        rows = [json.dumps(row.to_json()) for row in ordered]
        new = self.file.with_suffix(".new")
        try:
            new.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
            new.replace(self.file)
        except OSError as error:
            raise InvalidRequest(
                f"references file {self.file} cannot be written: {reason_of(error)}; "
                f"name another one with --references"
            ) from None

    def of(self, model: str, listed: ListedComposition) -> Reference:
        """The reference, or an empty one; the composition's batch must be given."""
        assert listed.batch is not None
        empty = Reference(
            model=model, case=listed.name, composition=listed.text, batch=listed.batch
        )
        return self.rows.get((model, listed.text, listed.batch), empty)

    def keep(self, reference: Reference) -> None:
        """Put it in the place of what is known."""
        self.rows[reference.model, reference.composition, reference.batch] = reference

    def offer(
        self, model: str, listed: ListedComposition, plan: Plan, samples_s: float, found_by: str
    ) -> bool:
        """Keep a plan if it beats the reference; whether it does."""
        known = self.of(model, listed)
        if samples_s <= known.throughput_samples_s * (1 + 1e-12):
            return False
        self.keep(replace(known, throughput_samples_s=samples_s, found_by=found_by, plan=plan))
        return True
