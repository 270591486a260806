"""Keys become events, and never take the last node."""

from __future__ import annotations

from heddle.demo.scenario import JOINERS
from heddle.train.screen.keys import event_for
from heddle_operator.state.snapshot import ObservedNode

NODES = {name: ObservedNode(name=name, gpu_type="demo-fast", gpus=1) for name in ("a", "b", "c")}


def test_a_adds_d_drains_the_first_and_k_kills_the_last():
    assert [str(event_for(key, 5, NODES, JOINERS, 0)) for key in "adk"] == [
        "join fast-new-1",
        "drain a",
        "kill c",
    ]


def test_other_keys_and_the_last_node_are_left_alone():
    assert event_for("x", 5, NODES, JOINERS, 0) is None
    assert event_for("k", 5, {"a": NODES["a"]}, JOINERS, 0) is None
    assert event_for("d", 5, {"a": NODES["a"]}, JOINERS, 0) is None
