"""What the operator computes of one job at a look, each with the state that it costs most in.

CPU seconds without garbage collection, whose turns depend on what else lives in the process.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from heddle_operator.epochs.decide import decide
from heddle_operator.epochs.members import directive_of, members_of
from heddle_operator.report.events import events_of
from heddle_operator.report.status import count_holders, status_of
from heddle_operator.resources.epoch_config_map import record_of_body, record_to_body
from heddle_operator.rules.coverage import Survivors
from heddle_operator.rules.demand import demand_of
from heddle_operator.rules.drain import drain_of
from heddle_operator.rules.emergency import without_replicas
from heddle_operator.state.decision import Decision
from heddle_operator.state.situation import View
from heddle_operator.state.speeds.node_speed import measured_speeds
from heddle_operator.state.speeds.type_speed import measured_types
from heddle_operator.state.speeds.work import work_of
from planner.profiles.generator import find_profile
from tests.large_job import Look, looks, training
from worker.columns import compressed_directive

QUIET, LOSS = "training", "all others have halted"
UNSEALED = "an epoch is to be sealed"


def look_at(look: Look) -> Decision:
    """One whole look."""
    return decide(look.view)


def _in(look: Look, work: Callable[[View], object]) -> Callable[[Look], object]:
    """The work on a fresh picture of the look, whose situation is known already."""
    known = look.view
    return lambda seen: work(replace(known, observed=seen.observed))


@dataclass(frozen=True)
class PureCore:
    """All that is computed of a job on so many nodes.

    Attributes:
        nodes: of 8 GPUs.
    """

    nodes: int

    @cached_property
    def looks(self) -> Mapping[str, Look]:
        """The job in every state, by name."""
        gc.disable()  # it would look through millions of new objects again and again
        try:
            return dict(looks(self.nodes))
        finally:
            gc.enable()

    @cached_property
    def work(self) -> Mapping[str, tuple[Look, Callable[[Look], object]]]:
        """By name: the state, and what is computed in it."""
        quiet, lost = self.looks[QUIET], self.looks[LOSS]
        pending, yields = self.looks[UNSEALED], training(self.nodes, yieldToAutoscaler=True)
        decision, drain = look_at(quiet), drain_of(quiet.view)
        model, plan = quiet.job.workload.model, quiet.record.plan
        profile = find_profile(quiet.job.workload)
        holders, shares = count_holders(model, plan), work_of(plan, model, profile)
        body = record_to_body(quiet.job, quiet.record, 0.0)
        rows: dict[str, tuple[Look, Callable[[Look], object]]] = {
            f"decide: {name}": (look, look_at) for name, look in self.looks.items()
        }
        rows |= {
            "situation": (quiet, lambda seen: seen.view),
            "demand": (
                pending,
                _in(pending, demand_of),
            ),
            "drain, nodes yielded": (
                yields,
                _in(yields, drain_of),
            ),
            "survivors": (
                lost,
                _in(lost, lambda v: Survivors.of(model, v.situation.holders, v.observed).problem()),
            ),
            "events": (quiet, _in(quiet, lambda v: events_of(v, decision, drain))),
            "status": (
                quiet,
                _in(quiet, lambda v: status_of(v, decision, holders, drain, {}, "T", "")),
            ),
            "holders of pieces": (quiet, lambda _: count_holders(model, plan)),
            "members": (
                quiet,
                _in(quiet, lambda v: members_of(plan, v.observed, v.situation.holders)),
            ),
            "work of ranks": (quiet, lambda _: work_of(plan, model, profile)),
            "speeds": (quiet, lambda s: measured_speeds(s.observed, s.record, shares)),
            "speeds of types": (
                quiet,
                lambda s: measured_types(s.observed, s.record, shares, {}),
            ),
            "half of the replicas dropped": (
                quiet,
                lambda s: without_replicas(plan, set(plan.nodes[::2]), s.job.workload),
            ),
            "directive": (
                quiet,
                lambda s: compressed_directive(
                    directive_of(s.job, s.record, "prepare", s.observed).model_dump(mode="json")
                ),
            ),
            "record written": (
                quiet, lambda s: json.dumps(record_to_body(s.job, s.record, 0.0))
            ),
            "record read": (quiet, lambda _: record_of_body(body, 0.0)),
        }  # fmt: skip
        return rows

    def cpu_s(self, name: str) -> float:
        """CPU seconds of one of them, of a picture in which nothing has been looked up yet."""
        look, work = self.work[name]
        seen = look.anew()
        gc.disable()
        try:
            began_s = time.thread_time()
            work(seen)
            return time.thread_time() - began_s
        finally:
            gc.enable()
