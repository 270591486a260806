"""Every example of manifests/examples holds a job that the operator takes and that pods can run."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path, PurePosixPath

import pytest
import yaml

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import load_job
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.resources.template_rules import problems_of
from heddle_operator.state.actions import CreatePod
from planner.model.catalogue import MODELS
from worker.weights.hugging_face.config import config_of

EXAMPLES = sorted((Path(__file__).parents[1] / "manifests" / "examples").glob("*.yaml"))
CONFIG = config_of(MODELS["tiny-llama"])  # for a ConfigMap that an example names


def bodies(path, kind):
    return [body for body in yaml.safe_load_all(path.read_text()) if body["kind"] == kind]


def job_of(path):
    """The job of an example, and its body."""
    (body,) = bodies(path, "HeddleJob")
    return load_job(body, CONFIG if "configRef" in body["spec"]["model"] else None), body


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.name)
def example(request):
    return request.param


def test_the_job_is_taken_and_has_the_name_of_its_file(example):
    job, _ = job_of(example)
    assert job.name == example.stem


def test_the_operator_makes_pods_of_it_that_mount_what_the_example_claims(example):
    job, body = job_of(example)
    template = body["spec"].get("worker", {}).get("template", {})
    assert list(problems_of(template, set())) == []
    action = CreatePod(f"{job.name}-n1-0", "n1", 0, 1)
    pod = pod_body(job, action, WorkerDefaults(image="heddle-worker:1", template={}), 0.0)
    claimed = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    claims = bodies(example, "PersistentVolumeClaim")
    assert set(claimed.values()) == {claim["metadata"]["name"] for claim in claims}
    assert all(claim["spec"]["accessModes"] == ["ReadWriteMany"] for claim in claims)
    (worker,) = pod["spec"]["containers"]
    mounts = [m["mountPath"] for m in worker["volumeMounts"] if m["name"] in claimed]
    spec = body["spec"]
    paths = [spec["model"].get("path"), spec["data"].get("path"), spec["data"].get("tokenizer")]
    for path in filter(None, [*paths, spec.get("output", {}).get("path")]):
        assert any(PurePosixPath(path).is_relative_to(mount) for mount in mounts), path


def leaves(at, path=()):
    """The paths of all fields that are no mapping."""
    for key, value in at.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) else ((*path, key),)


TINY = bodies(EXAMPLES[0].with_name("tiny.yaml"), "HeddleJob")[0]


@pytest.mark.parametrize("field", list(leaves(TINY["spec"])), ids=".".join)
def test_the_first_example_holds_no_field_that_may_go(field):
    less = copy.deepcopy(TINY)
    at = less["spec"]
    for key in field[:-1]:
        at = at[key]
    del at[field[-1]]
    with contextlib.suppress(InvalidJob):  # it is required
        assert load_job(less) != load_job(TINY)
