"""What users add to the worker pods is added, and nothing of Heddle's gets lost."""

from __future__ import annotations

import copy

import pytest

from heddle_operator.resources.pod_template import merge

A, B = {"name": "A", "value": "1"}, {"name": "B", "value": "2"}
B_MOUNT = {"mountPath": "/b"}


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        (
            {"containers": [{"name": "worker", "image": "old", "env": [A]}]},
            {"containers": [{"name": "worker", "image": "new", "env": [B]}]},
            {"containers": [{"name": "worker", "image": "new", "env": [A, B]}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "readOnly": True}, B_MOUNT]},
            {"volumeMounts": [{"mountPath": "/a", "name": "x", "readOnly": True}, B_MOUNT]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]},
         {"tolerations": [{"key": "a"}, {"key": "b"}]}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["a", "b"]}),
        ({"command": ["a"]}, {"command": ["b"]}, {"command": ["b"]}),
    ],
    ids=["keys", "mappings", "null", "containers", "mounts", "tolerations", "args", "command"],
)  # fmt: skip
def test_a_later_template_adds_to_an_earlier_one(base, over, merged):
    before = copy.deepcopy((base, over))
    assert merge(base, over) == merged
    assert (base, over) == before


def test_containers_keep_their_order_and_new_ones_come_last():
    base = {"containers": [{"name": "worker"}, {"name": "sidecar"}]}
    over = {"containers": [{"name": "logger"}, {"name": "sidecar", "image": "i"}]}
    names = [container["name"] for container in merge(base, over)["containers"]]
    assert names == ["worker", "sidecar", "logger"]
