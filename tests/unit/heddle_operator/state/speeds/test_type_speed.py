"""A type is as fast as the median of its nodes; what differs from that is a node's own."""

from __future__ import annotations

import pytest

from heddle_operator.state.snapshot import AgentView, Observed, ObservedNode
from heddle_operator.state.speeds.node_speed import BELIEVED_S, known_at_start, measured_speeds
from heddle_operator.state.speeds.type_speed import (
    KnownTypeSpeed,
    measured_types,
    type_speeds,
    types_at_start,
    updated_types,
)
from heddle_operator.state.speeds.work import work_of
from planner.cluster.composition import Composition, Node
from planner.cost.stage import stage_seconds
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.profiles.generator import find_profile
from tests.builders import MODEL
from tests.fakes.operator import a_record, a_report
from worker.contract import RankReport

PROFILE = find_profile(Workload(model=MODEL, global_batch=32, sequence_length=128))
FAST, SLOW = "demo-fast", "demo-slow"


def plan_on(types):
    """One replica of the whole model on one GPU of each of these nodes."""
    templates = tuple(
        FilledTemplate((Stage(gpu_type=t, tp=1, layers=MODEL.layers),), 1, (4,))
        for t in types.values()
    )
    placement = (PlacedStage(i, 0, 0, node, (0,)) for i, node in enumerate(types))
    return Plan(templates, tuple(placement))


def seconds_of(gpu_type):
    """Of four micro-batches of the whole model, by the profile."""
    stage = Stage(gpu_type=gpu_type, tp=1, layers=MODEL.layers)
    return 4 * sum(stage_seconds(PROFILE, MODEL, stage, 1, range(MODEL.layers + 2)))


class Trial:
    """Nodes with the times that their ranks measured, in units of the profile's."""

    def __init__(self, times, types=None, stated=None, overruns=0):
        self.types = types or dict.fromkeys(times, FAST)
        stated = stated or {}
        nodes = tuple(
            ObservedNode(
                name=name, gpu_type=self.types[name], gpus=1, speed_factor=stated.get(name, 1.0)
            )
            for name in times
        )
        plan = plan_on(self.types)
        ranks = tuple(
            RankReport(
                slot=i, pid=i + 1, started_s=0.0, phase="training", rank=i, epoch=3,
                compute_s=seconds_of(self.types[name]) * time, overruns=overruns,
            )
            for i, (name, time) in enumerate(times.items())
        )  # fmt: skip
        report = a_report(ranks=ranks)
        self.observed = Observed(nodes=nodes, agents={"p": AgentView(pod="p", report=report)})
        self.live = a_record(plan, epoch=3, outcome="live")
        self.work = work_of(plan, MODEL, PROFILE)

    def by_type(self, own=None):
        found = measured_types(self.observed, self.live, self.work, own or {})
        return {gpu_type: round(speed, 6) for gpu_type, speed in found.items()}

    def by_node(self):
        return dict(measured_speeds(self.observed, self.live, self.work))


def test_as_profiled_is_1():
    assert Trial({"a": 1.0, "b": 1.0}).by_type() == {FAST: 1.0}


@pytest.mark.parametrize("nodes", [2, 3, 4, 7])
@pytest.mark.parametrize("slowness", [1.2, 2.0, 50.0])
def test_one_slow_node_changes_its_type_by_nothing(nodes, slowness):
    trial = Trial({f"n{i}": slowness if i == 1 else 1.0 for i in range(nodes)})
    assert trial.by_type() == {FAST: 1.0}
    assert trial.by_node()["n1"] == pytest.approx(1 / slowness)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7])
def test_all_nodes_of_a_type_twice_as_slow_halve_the_type_and_slow_no_node(nodes):
    trial = Trial({f"n{i}": 2.0 for i in range(nodes)})
    assert trial.by_type() == {FAST: 0.5}
    assert set(trial.by_node().values()) <= {1.0}


def test_of_two_nodes_the_faster_one_is_the_type_and_the_other_one_is_slow():
    trial = Trial({"a": 2.0, "b": 6.0})
    assert trial.by_type() == {FAST: 0.5}
    assert trial.by_node() == pytest.approx({"a": 1.0, "b": 1 / 3})


def test_types_are_measured_apart_and_may_be_faster_than_their_profile():
    types = {"a": FAST, "b": FAST, "c": SLOW, "d": SLOW}
    trial = Trial({"a": 2.0, "b": 2.0, "c": 0.25, "d": 0.25}, types)
    assert trial.by_type() == {FAST: 0.5, SLOW: 4.0}


def test_what_is_stated_of_a_node_is_not_its_type():
    assert Trial({"a": 2.0}, stated={"a": 0.5}).by_type() == {FAST: 1.0}


def test_a_node_that_is_known_to_be_slow_makes_no_slow_type_where_it_is_alone():
    assert Trial({"a": 2.0}).by_type({"a": 0.5}) == {FAST: 1.0}


def test_an_emulated_gpu_that_was_late_measures_no_type():
    assert Trial({"a": 9.0, "b": 9.0}, overruns=1).by_type() == {}


def test_without_a_profile_no_type_is_measured():
    trial = Trial({"a": 2.0})
    work = work_of(trial.live.plan, MODEL)
    assert measured_types(trial.observed, trial.live, work, {}) == {}


def looks(known, speed, from_s, seconds):
    """What is believed after looks that all measured this; one each second."""
    for now in range(int(from_s), int(from_s + seconds) + 1):
        known = updated_types(known, {} if speed is None else {FAST: speed}, float(now))
    return known


def test_a_type_has_another_speed_after_all_measurements_of_a_minute_said_so():
    known = looks({}, 0.512, 0, BELIEVED_S - 1)
    assert known[FAST].speed == 1.0
    assert looks(known, 0.512, BELIEVED_S, 0) == {FAST: KnownTypeSpeed(0.51)}


def test_one_measurement_between_that_agrees_begins_the_minute_anew():
    known = looks(looks({}, 0.5, 0, 50), 1.0, 51, 0)
    assert looks(known, 0.5, 52, 50)[FAST].speed == 1.0


@pytest.mark.parametrize("speed", [0.7, 1.0, 1.4])
def test_what_is_less_than_half_as_far_off_again_corrects_nothing(speed):
    assert looks({}, speed, 0, 1000) == {}


@pytest.mark.parametrize(
    ("measured", "believed"), [(0.4, 0.5), (0.7, 0.5), (0.2, 0.2), (2.0, 2.0), (0.97, None)]
)
def test_a_corrected_type_is_corrected_again_where_it_is_as_far_off(measured, believed):
    known = looks({FAST: KnownTypeSpeed(0.5)}, measured, 0, BELIEVED_S)
    assert known == ({} if believed is None else {FAST: KnownTypeSpeed(believed)})


def test_a_type_that_no_rank_measures_keeps_its_speed():
    assert looks({FAST: KnownTypeSpeed(0.5)}, None, 0, 10_000) == {FAST: KnownTypeSpeed(0.5)}


def test_an_operator_that_starts_anew_parts_the_record_into_types_and_nodes():
    nodes = [ObservedNode(name=name, gpu_type=FAST, gpus=1) for name in "abc"]
    rows = (
        Node(name="a", gpu_type=FAST, gpus=1, link_domain="default", speed_factor=0.4),
        Node(name="b", gpu_type=FAST, gpus=1, link_domain="default", speed_factor=0.4),
    )
    slow = Node(name="c", gpu_type=FAST, gpus=1, link_domain="default", speed_factor=0.2)
    live = a_record(plan_on({"a": FAST}), Composition((*rows, slow)), 3)
    types = types_at_start(nodes, live)
    assert types == {FAST: KnownTypeSpeed(0.4)}
    known = known_at_start(nodes, live, 0.0, {FAST: 0.4})
    assert {name: each.speed for name, each in known.items()} == {"c": 0.5}


def test_a_record_with_one_slow_node_tells_of_no_type():
    nodes = [ObservedNode(name=name, gpu_type=FAST, gpus=1) for name in "ab"]
    rows = (
        Node(name="a", gpu_type=FAST, gpus=1),
        Node(name="b", gpu_type=FAST, gpus=1, link_domain="default", speed_factor=0.3),
    )
    live = a_record(plan_on({"a": FAST}), Composition(rows), 3)
    assert types_at_start(nodes, live) == {}


def test_the_types_that_differ_are_read_from_the_nodes():
    nodes = [
        ObservedNode(name="a", gpu_type=FAST, gpus=1, type_speed=0.5),
        ObservedNode(name="b", gpu_type=SLOW, gpus=1),
    ]
    assert type_speeds(nodes) == {FAST: 0.5}
