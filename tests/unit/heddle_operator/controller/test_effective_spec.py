"""A job that trains goes on while its spec is refused, by what can be known of it."""

from __future__ import annotations

import copy
import dataclasses
import shutil

import pytest

from heddle_operator.apis.errors import InvalidJob, OperatorError
from heddle_operator.controller.effective_spec import (
    accepted,
    ended_wall_s,
    gpu_types_of,
    has_ended,
    outcomes_of,
    spec_while_refused,
    stub_of,
    trains,
    ttl_in,
)
from heddle_operator.resources.epoch_config_map import record_to_body
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from planner.errors import HeddleError
from planner.profiles.profile import PROFILES
from tests.builders import heddle_job
from tests.fakes.operator import FakeOperator, a_cluster, a_job
from tests.refusals import refused

DEFAULTS = WorkerDefaults(image="heddle:1", template={})
SETTINGS = Settings()
HOST = {"name": "host", "hostPath": {"path": "/"}}
TOLERATION = {"key": "team", "operator": "Exists", "effect": "NoSchedule"}


def a_body(**spec):
    body = copy.deepcopy(heddle_job("tiny", **spec))
    body["metadata"] |= {"uid": "u", "namespace": "ns", "generation": 4}
    return body


def held(body, before=None):
    with pytest.raises(HeddleError) as refused:
        accepted(body, None, DEFAULTS, SETTINGS)
    return spec_while_refused(body, None, DEFAULTS, SETTINGS, before, str(refused.value))


def test_the_spec_that_was_accepted_last_holds_whole():
    before = accepted(a_body(elastic={"minGPUs": 2}), None, DEFAULTS, SETTINGS)
    effective = held(a_body(steps="many"), before)
    assert effective.job.spec == before.spec
    assert effective.job.metadata.generation == 4
    assert "steps" in effective.refusal
    assert "the spec that was accepted before holds" in effective.refusal
    assert effective.no_pods == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"planner": {"budgetSeconds": 1e6}},
        {"elastic": {"mode": "Auto", "minGPUs": 3, "maxGPUs": 2}},
        {"elastic": {"peerTimeoutSeconds": 0.5, "colour": "red"}},
        {"deadlineSeconds": -1},
        {"planRef": "../secrets"},
    ],
)
def test_after_a_restart_the_job_goes_on_without_what_is_wrong_and_moves_for_losses_only(wrong):
    effective = held(a_body(**wrong))
    assert effective.job.spec.elastic.mode == "Recommend"
    assert effective.job.training == accepted(a_body(), None, DEFAULTS, SETTINGS).training
    assert effective.refusal.endswith("goes on without it and moves only where it loses GPUs")
    assert effective.no_pods == ""


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"training": {"globalBatch": 8, "seed": "x"}}])
def test_what_the_training_depends_on_is_never_guessed(wrong):
    assert held(a_body(**wrong)) is None


def test_of_a_template_that_is_refused_no_pod_is_made_and_its_nodes_still_count():
    template = {"spec": {"volumes": [HOST], "tolerations": [TOLERATION]}}
    effective = held(a_body(worker={"template": template}))
    assert "hostPath" in effective.no_pods
    assert effective.job.spec.worker.template["spec"]["tolerations"] == [TOLERATION]
    assert effective.job.spec.elastic.mode == "Auto"


@pytest.mark.parametrize("containers", ["x", [7], [{"name": "worker", "args": 3}]])
def test_of_a_template_that_gives_no_pod_counts_what_can_be_read(containers):
    template = {"spec": {"containers": containers, "nodeSelector": {"team": "a"}}}
    effective = held(a_body(worker={"template": template}))
    assert effective.no_pods
    assert effective.job.spec.worker.template == {"spec": {"nodeSelector": {"team": "a"}}}


@pytest.mark.parametrize("worker", [{"template": "x"}, {"template": {}, "logFormat": "xml"}])
def test_a_template_that_is_left_out_is_no_template_to_make_pods_of(worker):
    assert held(a_body(worker=worker)).no_pods


def test_a_new_job_is_refused():
    with refused(InvalidJob, "Unsupported", "spec.worker.template"):
        accepted(
            a_body(worker={"template": {"spec": {"volumes": [HOST]}}}), None, DEFAULTS, SETTINGS
        )


def test_a_defect_of_the_operator_is_a_refusal_and_leaves_no_job_alone():
    """Its own templates are of a form that the start of the operator lets through no more."""
    broken = dataclasses.replace(DEFAULTS, template={"spec": {"containers": {"name": "worker"}}})
    with refused(OperatorError, "Failed") as error:
        accepted(a_body(), None, broken, SETTINGS)
    effective = spec_while_refused(a_body(), None, broken, SETTINGS, None, str(error.value))
    assert effective is not None
    assert effective.no_pods


@pytest.mark.parametrize(
    ("outcomes", "phase", "is_training", "is_over"),
    [
        ((), "", False, False),
        ((), "Failed", False, True),
        (("open",), "Preparing", True, False),
        (("aborted",), "Pending", False, False),
        (("live", "aborted"), "Running", True, False),
        (("live", "suspended"), "Suspended", False, False),
        (("live", "lost", "aborted"), "Pending", False, False),
        (("live", "lost", "open"), "Preparing", True, False),
        (("suspended", "live"), "Running", True, False),
        (("live", "complete"), "Running", False, True),
        (("live", "failed"), "Running", False, True),
        (("live",), "Complete", False, True),
    ],
)
def test_a_job_trains_while_an_epoch_lives_or_opens(outcomes, phase, is_training, is_over):
    assert trains(outcomes, {"phase": phase}) == is_training
    assert has_ended(outcomes, {"phase": phase}) == is_over


def test_outcomes_are_in_the_order_of_epochs_and_what_is_no_record_is_left_out():
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, "a"))
    operator.settle()
    (record,) = operator.cluster.records.all
    third = dataclasses.replace(record, epoch=3, outcome="open")
    bodies = [record_to_body(job, each, 0.0) for each in (third, record)]
    assert outcomes_of([*bodies, {"data": {}}, {}]) == ("live", "open")


@pytest.mark.parametrize(
    ("rows", "ended_s"),
    [
        ([("Complete", "False", "2026-01-01T00:00:00Z")], None),
        ([("Complete", "False", "?"), ("Failed", "True", "1970-01-01T00:01:00Z")], 60.0),
        ([("Complete", "True", "1970-01-01T01:00:00+01:00")], 0.0),
        ([("Failed", "True", "yesterday")], None),
    ],
)
def test_the_end_of_a_job_is_in_its_conditions(rows, ended_s):
    keys = ("type", "status", "lastTransitionTime")
    assert (
        ended_wall_s({"conditions": [dict(zip(keys, row, strict=True)) for row in rows]}) == ended_s
    )


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(None, None), (0, 0), (60, 60), (-1, None), ("x", None)]
)
def test_a_time_to_live_is_read_of_a_spec_that_is_refused(ttl, seconds):
    assert ttl_in(a_body(steps=0, ttlSecondsAfterFinished=ttl)) == seconds
    assert ttl_in({"spec": None}) is None


def test_even_of_a_job_that_cannot_be_read_the_identity_is_known():
    metadata = {"name": "x.y", "namespace": "ns", "uid": "u", "generation": 4}
    found = stub_of({"metadata": metadata})
    assert (found.name, found.metadata.namespace, found.metadata.uid) == ("x.y", "ns", "u")


def test_a_volume_that_the_administrator_names_is_not_the_authors():
    template = {"spec": {"volumes": [{"name": "host", "emptyDir": {}}]}}
    body = a_body(worker={"template": template})
    assert accepted(body, None, DEFAULTS, SETTINGS).name == "tiny"
    for kind in ("base", "template"):
        given = {kind: {"spec": {"volumes": [HOST]}}}
        with refused(InvalidJob, "Unsupported", "spec.worker.template"):
            accepted(body, None, dataclasses.replace(DEFAULTS, **given), SETTINGS)


def test_where_money_decides_only_gpu_types_with_a_price_count():
    body = a_body(planner={"objective": "Cost"})
    with pytest.raises(HeddleError) as refused:
        accepted(body, None, DEFAULTS, Settings(prices={"abacus": 1.0}))
    assert "spec.planner.objective is Cost" in str(refused.value)
    settings = Settings(prices={"demo-slow": 0.5, "abacus": 1.0})
    assert gpu_types_of(accepted(body, None, DEFAULTS, settings), settings) == ("demo-slow",)
    assert "demo-fast" in gpu_types_of(accepted(a_body(), None, DEFAULTS, settings), settings)


def test_a_job_may_use_the_gpu_types_of_the_administrators_profiles(tmp_path):
    shutil.copytree(PROFILES / "tiny-llama", tmp_path / "tiny-llama")
    for path in tmp_path.glob("tiny-llama/*.json"):
        path.write_text(path.read_text().replace("demo-fast", "fpga"))
    (tmp_path / "tiny-llama" / "demo-fast.json").rename(tmp_path / "tiny-llama" / "fpga.json")
    settings = Settings(profiles=str(tmp_path))
    job = accepted(a_body(elastic={"gpuTypes": {"allow": ["fpga"]}}), None, DEFAULTS, settings)
    assert gpu_types_of(job, settings) == ("demo-slow", "fpga")
    assert job.notes == ()
    with refused(InvalidJob, "Unknown", "spec.elastic.gpuTypes.allow"):
        accepted(a_body(elastic={"gpuTypes": {"allow": ["fpga"]}}), None, DEFAULTS, SETTINGS)
    body = a_body()
    body["spec"]["training"]["sequenceLength"] = 64
    (note,) = accepted(body, None, DEFAULTS, settings).notes
    assert "sequence length 128" in note


def test_a_job_that_trains_goes_on_without_its_objective_when_the_prices_are_gone():
    body = a_body(planner={"objective": "Cost"})
    effective = held(body)
    assert effective.job.spec.planner.objective == "Throughput"
    assert effective.job.spec.elastic.mode == "Recommend"


@pytest.mark.parametrize("where", ["base", "template"])
def test_a_wire_of_the_chart_is_the_one_that_plans_are_priced_by(where):
    env = [{"name": "HEDDLE_WIRE", "value": "nccl"}]
    chart = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    body = a_body(worker={"device": "CUDA"})
    assert accepted(body, None, DEFAULTS, SETTINGS).workload.wire == "staged"
    defaults = dataclasses.replace(DEFAULTS, **{where: chart})
    job = accepted(body, None, defaults, SETTINGS)
    assert job.workload.wire == "nccl"
    kept = spec_while_refused(a_body(worker={"device": "GPU"}), None, defaults, SETTINGS, job, "no")
    assert kept.job.workload.wire == "nccl"


def test_a_job_may_take_another_wire_than_the_chart_and_the_administrator_has_the_last_word():
    def asking(wire):
        env = [{"name": "HEDDLE_WIRE", "value": wire}]
        return {"spec": {"containers": [{"name": "worker", "env": env}]}}

    body = a_body(worker={"device": "CUDA", "template": asking("staged")})
    below = dataclasses.replace(DEFAULTS, base=asking("nccl"))
    assert accepted(body, None, below, SETTINGS).workload.wire == "staged"
    above = dataclasses.replace(below, template=asking("nccl"))
    assert accepted(body, None, above, SETTINGS).workload.wire == "nccl"
