"""train/preconditions/given_plan.py: a plan that cannot run is one sentence, before a run."""

from __future__ import annotations

import json

import pytest

from heddle.train.choices import NODE, TrainOptions, choose
from heddle.train.preconditions.refusals import refusals
from heddle_operator.apis.errors import InvalidJob
from planner.model.catalogue import MODELS
from planner.model.workload import usual_workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.refusals import refused
from tests.unit.heddle.train.test_choices import MACHINE, TINY, job_file

TYPE = MACHINE.gpu_type


def pipeline(batch=8, gpu_type="h100", stages=2, tp=1, micro_batch=1):
    """A pipeline of equal stages, each on a node of its own."""
    stage = Stage(gpu_type=gpu_type, tp=tp, layers=TINY.layers // stages)
    fill = FilledTemplate(
        stages=(stage,) * stages, micro_batch=micro_batch, micro_batches=(batch // micro_batch,)
    )
    gpus = tuple(range(tp))
    placement = tuple(PlacedStage(0, 0, s, f"node-{s}", gpus) for s in range(stages))
    return Plan(templates=(fill,), placement=placement)


def plan_file(tmp_path, plan, workload=None):
    file = tmp_path / "plan.json"
    stated = {"workload": workload.to_json()} if workload else {}
    file.write_text(json.dumps(plan.to_json() | stated))
    return file


def chosen(tmp_path, file, **options):
    return choose(job_file(tmp_path), TrainOptions(plan=file, **options), MACHINE)


def mistake_of(tmp_path, file, **options):
    with pytest.raises(InvalidJob) as error:
        chosen(tmp_path, file, **options)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"--plan {file}: ")
    return line


def batch_of(tmp_path):
    return choose(job_file(tmp_path), TrainOptions(), MACHINE).job.workload.global_batch


def test_gpus_of_a_plan_are_the_ranks_of_this_machine(tmp_path):
    plan = pipeline(batch_of(tmp_path))
    found = chosen(tmp_path, plan_file(tmp_path, plan))
    laid = found.plan.plan
    assert [(p.node, p.gpus) for p in laid.placement] == [(NODE, (0,)), (NODE, (1,))]
    assert {stage.gpu_type for t in laid.templates for stage in t.stages} == {TYPE}
    assert (found.job.spec.elastic.mode, found.plan.source) == (
        "Manual",
        f"file {tmp_path / 'plan.json'}",
    )


def test_mode_manual_asks_for_a_plan_and_takes_it(tmp_path):
    path = job_file(tmp_path, spec__elastic={"mode": "Manual"})
    with refused(InvalidJob, "Unsupported", "spec.elastic.mode"):
        choose(path, TrainOptions(), MACHINE)
    file = plan_file(tmp_path, pipeline(batch_of(tmp_path)))
    assert choose(path, TrainOptions(plan=file), MACHINE).plan is not None


def test_a_plan_of_another_model_is_refused(tmp_path):
    workload = usual_workload(MODELS["llama3-8b"])
    line = mistake_of(tmp_path, plan_file(tmp_path, pipeline(), workload))
    assert "is for model 'llama3-8b', the job trains 'tiny-llama'" in line


def test_a_plan_of_another_batch_is_refused(tmp_path):
    batch = batch_of(tmp_path)
    line = mistake_of(tmp_path, plan_file(tmp_path, pipeline(2 * batch)))
    assert f"train {2 * batch} samples a step, the global batch is {batch}" in line


def test_a_plan_with_more_gpus_than_ranks_is_refused(tmp_path):
    file = plan_file(tmp_path, pipeline(batch_of(tmp_path), stages=3))
    assert "uses 3 GPUs, and 2 ranks are there; say --ranks 3" in mistake_of(tmp_path, file)
    assert chosen(tmp_path, file, ranks=3).plan.plan.gpus == 3


def test_a_tp_degree_that_is_not_measured_is_refused(tmp_path):
    file = plan_file(tmp_path, pipeline(batch_of(tmp_path), stages=1, tp=2))
    assert "a stage has TP 2, and this machine is measured for TP 1" in mistake_of(tmp_path, file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "no plan", "cannot be read"),
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: "[]", "must hold one JSON object"),
        (lambda text: text.replace('"micro_batches"', '"micro_batch_count"'), "is missing"),
        (lambda text: text.replace('"digest": "', '"digest": "0'), "changed by hand"),
    ],
)
def test_a_file_that_holds_no_plan_is_refused(tmp_path, change, words):
    file = plan_file(tmp_path, pipeline(batch_of(tmp_path)))
    file.write_text(change(file.read_text()))
    assert words in mistake_of(tmp_path, file)
    assert "cannot be read" in mistake_of(tmp_path, tmp_path / "none.json")


def test_a_plan_that_emulated_nodes_cannot_price_is_found(tmp_path):
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("".join(f"- {{name: node-{n}, type: demo-fast, gpus: 1}}\n" for n in range(2)))
    batch = batch_of(tmp_path)
    fit = plan_file(tmp_path, pipeline(batch, "demo-fast"))
    assert refusals(chosen(tmp_path, fit, nodes=nodes), is_fresh=False, reads_weights=False) == ()
    large = plan_file(tmp_path, pipeline(batch, "demo-fast", micro_batch=batch))
    (line,) = refusals(chosen(tmp_path, large, nodes=nodes), is_fresh=False, reads_weights=False)
    assert f"micro-batch {batch}" in line.message
