"""A stall is the time without a step by the survivors' clocks, whatever those clocks show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.report.timings import reconfigurations
from heddle_operator.state.snapshot import AgentView, Observed
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record, a_report
from tests.fakes.planner import fake_plan
from worker.contract import LAPS, SwitchRecord

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
PLAN = fake_plan(NODES, a_job().workload)
LAP_S = 0.1
spans = st.floats(0.0, 60.0)


@dataclass(frozen=True)
class Loss:
    """A node falls silent at 0 s, the others' last step has ended before; all by one true clock."""

    last_step_s: float  # before the silence
    silence_s: float
    plan_s: float
    prepare_s: float

    @property
    def halted_s(self) -> float:
        return self.silence_s

    @property
    def adopted_s(self) -> float:
        return self.halted_s + self.plan_s

    @property
    def prepared_s(self) -> float:
        return self.adopted_s + self.prepare_s

    @property
    def resumed_s(self) -> float:
        return self.prepared_s + LAP_S * len(LAPS)

    def switch(self, slot: int, clock_s: float) -> SwitchRecord:
        """What a survivor tells whose clock is ahead by so much."""
        laps = {name: self.prepared_s + clock_s + LAP_S * i for i, name in enumerate(LAPS, 1)}
        return SwitchRecord(
            epoch=2,
            slot=slot,
            pid=slot,
            step=9,
            stopped_s=clock_s - self.last_step_s,
            halted_s=clock_s + self.halted_s,
            laps=laps,
            first_step_s=clock_s + self.resumed_s,
        )


losses = st.builds(Loss, st.floats(0.0, 1.0), spans, spans, spans)
clocks = st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=4)


@given(loss=losses, clocks_s=clocks, operator_s=st.floats(-1e5, 1e5))
def test_of_a_loss_it_is_all_the_time_without_a_step_and_noticing_is_all_the_silence(
    loss: Loss, clocks_s: list[float], operator_s: float
) -> None:
    agents = {
        f"p{slot}": AgentView(
            pod=f"p{slot}", report=a_report(switches=(loss.switch(slot, clock_s),))
        )
        for slot, clock_s in enumerate(clocks_s)
    }
    record = a_record(
        PLAN,
        NODES,
        2,
        reason="loss",
        adopted_s=operator_s + loss.adopted_s,
        outcome="live",
        closed_s=operator_s + loss.resumed_s,
    )
    (change,) = reconfigurations(Observed(epochs=(record,), agents=agents))
    assert change.stall_s == pytest.approx(loss.last_step_s + loss.resumed_s, abs=1e-6)
    assert sum(change.parts.values()) == pytest.approx(change.stall_s, abs=1e-6)
    silent_s = loss.last_step_s + loss.silence_s
    assert change.parts["detect_s"] == pytest.approx(silent_s, abs=1e-6)
    # The switch waits for its laps, of which one, draining, nobody can tell from preparation.
    assert change.parts["plan_s"] == pytest.approx(loss.plan_s, abs=LAP_S + 1e-6)
    assert min(change.parts.values()) >= 0
