"""Speed is told by ranks that do the same work; noise and one bad step tell nothing."""

from __future__ import annotations

import pytest

from heddle_operator.state.snapshot import AgentView, Observed, ObservedNode
from heddle_operator.state.speeds.node_speed import (
    BELIEVED_S,
    FORGOTTEN_S,
    KnownSpeed,
    known_at_start,
    measured_speeds,
    slow_in_plan,
    slow_nodes,
    updated,
)
from heddle_operator.state.speeds.work import work_of
from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.builders import MODEL
from tests.fakes.operator import a_record, a_report
from worker.contract import RankReport

A, B, C = (ObservedNode(name=name, gpu_type="demo-fast", gpus=2) for name in "abc")


def replicas(*nodes, micro_batches=None, gpu_type="demo-fast"):
    """One replica of the whole model on each of these nodes."""
    stage = Stage(gpu_type=gpu_type, tp=1, layers=MODEL.layers)
    counts = micro_batches or [4] * len(nodes)
    templates = tuple(FilledTemplate((stage,), 1, (count,)) for count in counts)
    used: dict[str, int] = {}
    placement = []
    for t, node in enumerate(nodes):
        placement.append(PlacedStage(t, 0, 0, node, (used.get(node, 0),)))
        used[node] = used.get(node, 0) + 1
    return Plan(templates, tuple(placement))


def pipeline(*nodes):
    """One replica with a stage on each of these nodes."""
    share = MODEL.layers // len(nodes)
    stages = tuple(Stage(gpu_type="demo-fast", tp=1, layers=share) for _ in nodes)
    placement = tuple(PlacedStage(0, 0, s, node, (0,)) for s, node in enumerate(nodes))
    return Plan((FilledTemplate(stages, 1, (4,)),), placement)


def record(plan, *nodes):
    return a_record(plan, Composition(tuple(nodes)), 3, outcome="live")


def measured(plan, seconds, nodes=(A, B, C), **changes):
    """Speeds by node, where the ranks measured these seconds."""
    ranks = [
        RankReport(
            **{
                "slot": i, "pid": i + 1, "started_s": 0.0, "phase": "training", "rank": i,
                "epoch": 3, "compute_s": one, **changes,
            }
        )
        for i, one in enumerate(seconds)
    ]  # fmt: skip
    report = a_report(ranks=tuple(ranks))
    observed = Observed(nodes=nodes, agents={"p": AgentView(pod="p", report=report)})
    live = record(plan)
    return measured_speeds(observed, live, work_of(plan, MODEL))


def test_a_node_that_takes_twice_as_long_has_half_the_speed():
    assert measured(replicas("a", "b", "c"), [1.0, 2.0, 1.0]) == {"a": 1.0, "b": 0.5, "c": 1.0}


def test_of_two_nodes_the_slower_one_is_slow():
    assert measured(replicas("a", "b"), [2.0, 1.0]) == {"a": 0.5, "b": 1.0}


def test_more_micro_batches_are_no_slowness():
    plan = replicas("a", "b", micro_batches=[6, 2])
    assert measured(plan, [3.0, 1.0]) == {"a": 1.0, "b": 1.0}


def test_a_node_is_as_fast_as_its_slowest_gpu():
    assert measured(replicas("a", "b", "b"), [1.0, 1.0, 4.0]) == {"a": 1.0, "b": 0.25}


def test_no_node_is_faster_than_its_type():
    speeds = measured(replicas("a", "b", "c"), [1.0, 1.0, 0.5])
    assert speeds == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_ranks_with_other_work_are_no_peers():
    assert measured(pipeline("a", "b"), [1.0, 9.0]) == {}
    assert measured(pipeline("a", "b", "a"), [1.0, 1.0, 1.0]) == {}


def test_a_node_without_peers_is_not_measured():
    assert measured(replicas("a", "a"), [1.0, 5.0]) == {}


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 2}, {"phase": "halted"}, {"rank": None}, {"rank": 9}, {"compute_s": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_only_ranks_that_train_the_live_epoch_and_have_measured_count(changes):
    assert measured(replicas("a", "b"), [1.0, 2.0], **changes) == {}


def test_what_is_stated_of_a_node_is_not_measured_once_more():
    stated = ObservedNode(name="b", gpu_type="demo-fast", gpus=2, speed_factor=0.5)
    speeds = measured(replicas("a", "b"), [1.0, 2.0], nodes=(A, stated))
    assert speeds == {"a": 1.0, "b": 1.0}
    (node,) = (n for n in (A, stated) if n.name == "b")
    assert node.speed * speeds["b"] == 0.5


def looks(known, speed, from_s, seconds, step_s=0.0):
    """What is believed of node a after looks that all measured this; one each second."""
    for now in range(int(from_s), int(from_s + seconds) + 1):
        seen = {} if speed is None else {"a": speed}
        known = updated(known, [A], seen, float(now), step_s)
    return known


def test_a_node_is_slow_after_all_measurements_of_a_minute_said_so():
    known = looks({}, 0.52, 0, BELIEVED_S - 1)
    assert known["a"].speed == 1.0
    assert looks(known, 0.52, BELIEVED_S, 0)["a"].speed == 0.5


def test_one_measurement_between_that_is_well_begins_the_minute_anew():
    known = looks(looks({}, 0.5, 0, 50), 1.0, 51, 0)
    assert looks(known, 0.5, 52, 50)["a"].speed == 1.0


@pytest.mark.parametrize("speed", [1.0, 0.95, 0.91])
def test_noise_is_no_slowness(speed):
    assert looks({}, speed, 0, 1000)["a"].speed == 1.0


@pytest.mark.parametrize(
    ("now_measured", "believed"),
    [(0.54, 0.5), (0.46, 0.5), (0.6, 0.6), (0.4, 0.4), (0.94, 0.95), (0.97, 1.0), (0.001, 0.05)],
)
def test_a_slow_node_changes_its_speed_only_by_more_than_a_tenth(now_measured, believed):
    known = looks({}, 0.5, 0, BELIEVED_S)
    found = looks(known, now_measured, BELIEVED_S + 1, BELIEVED_S)["a"]
    assert found.speed == believed


def test_a_slow_node_that_is_not_measured_is_remembered_and_then_tried_ever_later():
    known, now = looks({}, 0.5, 0, BELIEVED_S), BELIEVED_S
    for pause_s in (FORGOTTEN_S, 2 * FORGOTTEN_S, 4 * FORGOTTEN_S):
        assert looks(known, None, now + pause_s - 1, 0)["a"].speed == 0.5
        known = looks(known, None, now + pause_s, 0)
        assert known["a"].speed == 1.0
        known = looks(known, 0.5, now + pause_s + 1, BELIEVED_S)
        now += pause_s + 1 + BELIEVED_S


def test_a_slow_node_is_not_tried_before_it_could_have_been_measured():
    known = looks({}, 0.5, 0, BELIEVED_S)
    assert looks(known, None, BELIEVED_S + FORGOTTEN_S, 0, step_s=60.0)["a"].speed == 0.5
    assert looks(known, None, BELIEVED_S + 64 * 60, 0, step_s=60.0)["a"].speed == 1.0


def test_a_node_that_was_well_again_is_tried_after_the_first_pause_the_next_time():
    known = looks(looks({}, 0.5, 0, BELIEVED_S), 1.0, 100, BELIEVED_S)
    assert known["a"] == KnownSpeed(1.0, 100 + BELIEVED_S)
    assert looks(known, 0.5, 200, BELIEVED_S)["a"].times == 1


def test_a_node_that_went_is_forgotten():
    known = looks({}, 0.5, 0, BELIEVED_S)
    assert updated(updated(known, [], {}, 100.0), [A], {}, 101.0)["a"].speed == 1.0


def test_an_operator_that_starts_anew_believes_the_record_of_the_live_epoch():
    live = record(
        replicas("b"),
        Node(name="a", gpu_type="demo-fast", gpus=2, speed_factor=0.3),
        Node(name="b", gpu_type="demo-fast", gpus=2),
    )
    stated = ObservedNode(name="a", gpu_type="demo-fast", gpus=2, speed_factor=0.5)
    assert known_at_start([A, B, C], live, 7.0, {}) == {"a": KnownSpeed(0.3, 7.0, None, 1)}
    assert known_at_start([stated], live, 7.0, {})["a"].speed == 0.6
    assert known_at_start([A], None, 7.0, {}) == {}


def test_slow_nodes_are_told_in_words():
    slow = [
        ObservedNode(name=name, gpu_type="demo-fast", gpus=1, measured_speed=0.6) for name in "ab"
    ]
    observed = Observed(nodes=(*slow, C))
    assert slow_nodes(observed)["a"] == "node a computes at 0.6 of the speed that its type has"
    assert set(slow_nodes(observed)) == {"a", "b"}
    assert slow_in_plan(observed, record(replicas("c"))) == ""
    assert slow_in_plan(observed, record(replicas("a", "b", "c"))) == (
        "node a computes at 0.6 of the speed that its type has, and 1 more node is slow"
    )
