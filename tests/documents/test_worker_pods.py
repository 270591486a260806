"""Every template of docs/worker-pods.md is one that a job may have, and gives a pod."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.resources.template_rules import problems_of
from heddle_operator.state.actions import CreatePod
from tests.unit.heddle_operator.resources.jobs import a_job

CHART = Path(__file__).parents[2] / "charts" / "heddle"
TEXT = (Path(__file__).parents[2] / "docs" / "worker-pods.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
TEMPLATES = [block for block in BLOCKS if yaml.safe_load(block).keys() == {"spec"}]
OTHERS = [yaml.safe_load(block) for block in BLOCKS if block not in TEMPLATES]
VALUES = [block for block in OTHERS if "worker" in block]  # of the chart
ACTION = CreatePod("tiny-n1-0", "n1", 0, 8)


def test_there_are_templates():
    assert len(TEMPLATES) == len(BLOCKS) - len(OTHERS) > 4
    assert len(OTHERS) == len(VALUES) + 1


@pytest.mark.parametrize("block", TEMPLATES)
def test_a_job_may_have_it_and_it_gives_a_pod(block):
    template = yaml.safe_load(block)
    assert list(problems_of(template, set())) == []
    pod = pod_body(
        a_job(template), ACTION, WorkerDefaults(image="heddle-worker:1", template={}), 0.0
    )
    named = {container["name"] for container in pod["spec"]["containers"]}
    assert named == {"worker"}


def test_the_values_of_the_chart_ask_for_what_the_comment_says():
    (values,) = [values for values in VALUES if "cpu" in values["worker"]["perGPU"]]
    defaults = WorkerDefaults(
        image="heddle-worker:1", template={}, per_gpu=values["worker"]["perGPU"]
    )
    worker = pod_body(a_job({}), ACTION, defaults, 0.0)["spec"]["containers"][0]
    requests = worker["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests["rdma/hca"]) == ("96", "1600Gi", "8")


def test_the_values_of_the_network_are_those_of_the_chart():
    (gpu,) = [values["worker"]["gpu"] for values in VALUES if "gpu" in values["worker"]]
    chart = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["worker"]["gpu"]
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = schema["properties"]["worker"]["properties"]["gpu"]["properties"]
    assert gpu.keys() == chart.keys() == known.keys()
    for name in ("wire", "fabric"):
        assert {gpu[name], chart[name]} <= set(known[name]["enum"])
        assert known[name]["enum"][0] == chart[name]


def test_the_network_policy_is_of_worker_pods_and_lets_the_operator_in():
    (policy,) = [block for block in OTHERS if block.get("kind") == "NetworkPolicy"]
    pod = pod_body(a_job({}), ACTION, WorkerDefaults(image="heddle-worker:1", template={}), 0.0)
    labels, spec = pod["metadata"]["labels"], policy["spec"]
    peers, operator = spec["ingress"]
    for selector in (spec["podSelector"], peers["from"][0]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert "ports" not in peers  # ranks meet on any
    (agent,) = pod["spec"]["containers"][0]["ports"]
    assert operator["ports"] == [{"port": agent["containerPort"]}]


def test_a_job_may_not_lock_memory_by_itself():
    worker = {"name": "worker", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    assert list(problems_of({"spec": {"containers": [worker]}}, set())) != []
    assert list(problems_of({"spec": {"hostNetwork": True}}, set())) != []
