"""A HeddleJob is read whole, or refused in one sentence."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.gpu_types import check_gpu_types
from heddle_operator.apis.heddlejob import HeddleJob, load_job
from tests.refusals import refused

EXAMPLES = Path(__file__).parents[4] / "manifests" / "examples"
JOB = yaml.safe_load((EXAMPLES / "tiny.yaml").read_text())


def changed(path: str, value: object) -> dict:
    job = copy.deepcopy(JOB)
    *parents, last = path.split(".")
    at = job
    for parent in parents:
        at = at.setdefault(parent, {})
    at[last] = value
    return job


def test_the_job_becomes_what_workers_and_planner_read():
    job = load_job(JOB)
    assert job.training.learning_rate == pytest.approx(3e-4)
    assert prefixes(job) == ["builtin:text"]
    assert (job.workload.global_batch, job.workload.sequence_length) == (20, 128)
    assert prefixes(job.with_data("/data")) == ["/data/text"]


def prefixes(job: HeddleJob) -> list[str]:
    return [corpus.path for corpus in job.training.data.blend]


def test_a_blend_and_a_split_reach_the_ranks():
    blend = [{"path": "/data/a", "weight": 0.3}, {"path": "/data/b", "weight": 2}]
    data = {"blend": blend, "split": [98, 1, 1], "documentMask": True}
    job = load_job(changed("spec.data", data))
    assert [(c.path, c.weight) for c in job.training.data.blend] == [
        ("/data/a", 0.3),
        ("/data/b", 2),
    ]
    assert job.training.data.split == (98, 1, 1)
    assert job.training.data.document_mask


def test_a_prepared_text_keeps_the_split():
    job = load_job(changed("spec.data", {"builtin": "text", "split": [9, 1, 0]}))
    assert job.with_data("/data").training.data.split == (9, 1, 0)


def test_training_settings_default_as_in_the_workers_contract():
    training = load_job(JOB).training
    assert (training.warmup_steps, training.betas, training.epsilon) == (50, (0.9, 0.95), 1e-6)


@pytest.mark.parametrize(
    ("path", "value", "mistake"),
    [
        ("spec.model.name", "gpt-9", ("Unknown", "spec.model.name")),
        ("spec.model.configRef", "x", ("Contradiction", "spec.model")),
        ("spec.model.entryPoint", "m:f", ("Contradiction", "spec.model")),
        ("spec.elastic", {"minGPUs": 32, "maxGPUs": 16}, ("Contradiction", "spec.elastic")),
        ("spec.training.lossScale", {"initial": 2}, ("Contradiction", "spec.training")),
        ("spec.training.schedule.kind", "wsd", ("Contradiction", "spec.training")),
        ("spec.training.epsilon", 0, ("OutOfRange", "spec.training.epsilon")),
        ("spec.planner.zero", 2, ("Unknown", "spec.planner.zero")),
        ("spec.planner.zero", True, ("Unknown", "spec.planner.zero")),
        ("spec.planRef", "../../secrets/x", ("Malformed", "spec.planRef")),
        ("spec.planRef", "a?watch=1", ("Malformed", "spec.planRef")),
        ("spec.planRef", "a" * 64, ("Malformed", "spec.planRef")),
        ("spec.model", {"path": "/m", "configRef": "..%2f"}, ("Malformed", "spec.model.configRef")),
        ("metadata.name", "a" * 64, ("Malformed", "metadata.name")),
        ("spec.suspend", True, ("Contradiction", "spec")),
        ("spec.checkpoint", {"path": "/s", "keep": {"best": True}}, ("Contradiction", "spec")),
        ("spec.data", {"builtin": "text", "path": "x"}, ("Contradiction", "spec.data")),
        ("spec.data", {"path": "a.jsonl"}, ("Contradiction", "spec.data")),
        ("spec.training.learningRate", float("inf"), ("OutOfRange", "spec.training.learningRate")),
        ("spec.training.epsilon", float("nan"), ("OutOfRange", "spec.training.epsilon")),
        ("spec.data.blend", [{"path": "x", "weight": 1}], ("Contradiction", "spec.data")),
        ("spec.data", {"blend": []}, ("OutOfRange", "spec.data.blend")),
        (
            "spec.data",
            {"blend": [{"path": "x", "weight": 0}]},
            ("OutOfRange", "spec.data.blend.0.weight"),
        ),
        ("spec.data.split", [0, 1, 0], ("Malformed", "spec.data.split")),
        ("spec.data.split", [1, -1, 0], ("OutOfRange", "spec.data.split.1")),
        ("spec.data.split", [1, 1], ("Missing", "spec.data.split.2")),
        ("spec.steps", 1.5, ("Malformed", "spec.steps")),
        ("spec.steps", True, ("Malformed", "spec.steps")),
        ("spec.steps", "20", ("Malformed", "spec.steps")),
        ("spec.training.learningRate", "3e-4", ("Malformed", "spec.training.learningRate")),
        ("spec.data.documentMask", "yes", ("Malformed", "spec.data.documentMask")),
        ("spec.output", 3, ("Malformed", "spec.output")),
        ("spec.output", {"path": "s3://bucket/x"}, ("Malformed", "spec.output.path")),
        ("metadata.name", "Not A Name", ("Malformed", "metadata.name")),
        ("kind", "Job", ("Unknown", "kind")),
        ("spec.model", ["x" * 999] * 999, ("Malformed", "spec.model")),
    ],
)
def test_a_mistake_is_refused_by_its_field(path, value, mistake):
    with refused(InvalidJob, *mistake) as error:
        load_job(changed(path, value))
    assert len(str(error.value)) < 400


def test_a_number_of_json_is_whole_however_it_is_written():
    assert load_job(changed("spec.steps", 20.0)).spec.steps == 20


def test_an_anchor_that_holds_itself_is_refused():
    job = copy.deepcopy(JOB)
    job["spec"]["worker"] = {"template": job["spec"]}
    with refused(InvalidJob, "Malformed"):
        load_job(job)


def test_a_missing_field_is_named():
    job = copy.deepcopy(JOB)
    del job["spec"]["steps"]
    with refused(InvalidJob, "Missing", "spec.steps"):
        load_job(job)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", "Unreadable"),
        ("- 1", "Malformed"),
        (None, "Unreadable"),
    ],
)
def test_an_unreadable_file_is_one_sentence(tmp_path, text, code):
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with refused(InvalidJob, code):
        load_job(path)


def test_a_gpu_type_without_profile_is_refused():
    job = load_job(changed("spec.elastic.gpuTypes.allow", ["h100"]))
    check_gpu_types(job, ("h100",))
    with refused(InvalidJob, "Unknown", "spec.elastic.gpuTypes.allow"):
        check_gpu_types(job, ("demo-fast",))


@pytest.mark.parametrize("mode", ["Auto", "Recommend", "Manual"])
def test_every_mode_is_read(mode):
    assert load_job(changed("spec.elastic.mode", mode)).spec.elastic.mode == mode


def test_the_status_of_an_object_from_the_cluster_is_no_input():
    assert load_job({**JOB, "status": {"phase": "Running"}}) == load_job(JOB)


@pytest.mark.parametrize(
    ("seconds", "is_allowed"), [(1.9, False), (2, True), (300, True), (301, False)]
)
def test_the_peer_timeout_has_limits(seconds, is_allowed):
    body = changed("spec.elastic.peerTimeoutSeconds", seconds)
    if is_allowed:
        assert load_job(body).spec.elastic.peer_timeout_seconds == seconds
    else:
        with refused(InvalidJob, "OutOfRange", "spec.elastic.peerTimeoutSeconds"):
            load_job(body)


def test_what_to_do_at_a_loss_that_is_not_finite_reaches_the_ranks():
    assert load_job(JOB).training.on_non_finite == "Stop"
    assert load_job(changed("spec.training.onNonFinite", "Skip")).training.on_non_finite == "Skip"


def test_the_schedule_reaches_the_ranks():
    schedule = {"kind": "wsd", "decaySteps": 5, "minLearningRate": 1e-5}
    found = load_job(changed("spec.training.schedule", schedule)).training.schedule
    assert (found.kind, found.decay_steps, found.min_learning_rate) == ("wsd", 5, 1e-5)
    assert load_job(JOB).training.schedule.kind == "constant"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_precision_reaches_ranks_and_planner(precision):
    job = load_job(changed("spec.training.precision", precision))
    assert job.training.precision == job.workload.precision == precision
    assert (job.training.scaling is not None) == (precision == "fp16")


def test_the_loss_scale_of_fp16_is_a_power_of_two():
    fp16 = {**JOB["spec"]["training"], "precision": "fp16", "lossScale": {"initial": 1024}}
    assert load_job(changed("spec.training", fp16)).training.scaling.initial == 1024
    fp16["lossScale"] = {"initial": 1000}
    with refused(InvalidJob, "Malformed", "spec.training.lossScale.initial"):
        load_job(changed("spec.training", fp16))


@pytest.mark.parametrize("how", ["none", "selective", "full", "auto"])
def test_recomputation_reaches_the_planner_and_memory_is_counted_as_the_worker_allocates(how):
    workload = load_job(changed("spec.planner.recompute", how)).workload
    assert (workload.recompute, workload.memory) == (how, "worker")


def test_zero_reaches_the_planner_and_yaml_reads_off_as_false():
    assert load_job(changed("spec.planner.zero", "Stage1")).workload.zero == 1
    assert load_job(changed("spec.planner.zero", "Auto")).workload.zero == 0
    off = load_job(changed("spec.planner.zero", False))
    assert off.spec.planner.zero == "Off"


@pytest.mark.parametrize(("stage", "word"), [(0, "Off"), (1, "Stage1")])
def test_a_stage_of_zero_may_be_its_number(stage, word):
    assert load_job(changed("spec.planner.zero", stage)).spec.planner.zero == word


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("spec.training.onNonFinite", "skip"),
        ("spec.elastic.verify", "full"),
        ("spec.planner.objective", "throughput"),
        ("spec.planner.zero", "auto"),
        ("spec.planner.zero", True),
        ("spec.planner.zero", 2),
    ],
)
def test_a_word_has_one_spelling(path, word):
    with pytest.raises(InvalidJob) as refused:
        load_job(changed(path, word))
    assert refused.value.field == path


@pytest.mark.parametrize(
    ("device", "asked", "wire"),
    [("Auto", "staged", "nccl"), ("CUDA", "staged", "staged"), ("CUDA", "nccl", "nccl")],
)
def test_a_job_on_gpus_is_priced_by_the_wire_that_its_pods_ask_for(device, asked, wire):
    env = [{"name": "OTHER", "valueFrom": {}}, {"name": "HEDDLE_WIRE", "value": asked}]
    template = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    job = load_job(changed("spec.worker", {"device": device, "template": template}))
    assert job.workload.wire == wire
    assert load_job(changed("spec.worker", {"device": "CUDA"})).workload.wire == "staged"
