"""A mixture of experts on kubelets: given plans spread its experts over two nodes and join them."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle_operator.apis.data import TEXT_BYTES
from planner.model.catalogue import find_model
from planner.plans.plan import PlacedStage, Plan
from tests.builders import template
from tests.cluster.assets import Assets
from tests.cluster.configuration import NodeSpec
from tests.e2e.kubernetes.curve import TOLERANCE
from tests.e2e.kubernetes.job import TRAINING, Job, job_body
from tests.e2e.kubernetes.listener import Listener
from tests.e2e.kubernetes.operator_process import OperatorProcess, operator_on
from worker.contract import TrainingSpec
from worker.data.making.prepare import prepare

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]
MODEL, TYPE = find_model("tiny-mixtral"), "demo-slow"
COMPARED = 60  # first steps of the job; later a last bit may decide which expert a token visits


@pytest.fixture
def operator(assets: Assets) -> Iterator[OperatorProcess]:
    """An operator of two nodes with one GPU each."""
    with operator_on((NodeSpec("n1", 1, TYPE), NodeSpec("n2", 1, TYPE)), assets) as found:
        yield found


def plan_on(*nodes: str, micro_batches: tuple[int, ...]) -> str:
    """A replica on each node, over all of which the experts are spread, as JSON."""
    plain = template(f"1x{MODEL.layers}", micro_batches=micro_batches, gpu_type=TYPE)
    stages = (replace(plain.stages[0], ep=len(nodes), etp=1),)
    where = tuple(PlacedStage(0, index, 0, node, (0,)) for index, node in enumerate(nodes))
    return json.dumps(Plan((replace(plain, stages=stages),), where).to_json())


def test_experts_spread_over_two_nodes_and_come_back(
    operator: OperatorProcess, tmp_path: Path
) -> None:
    cluster = operator.cluster
    plans = {
        "alone": plan_on("n1", micro_batches=(8,)),
        "spread": plan_on("n1", "n2", micro_batches=(5, 3)),
    }
    for name, plan in plans.items():
        cluster.kubectl("create", "configmap", name, f"--from-literal=plan.json={plan}")
    body = job_body("experts", mode="Manual", minHolders=1, verify="Full")
    body["spec"] |= {"model": {"name": MODEL.name}, "planRef": "alone"}
    job = Job.apply(cluster, body)
    with Listener(job) as heard:
        job.wait_until_on("n1", gpus=1)
        heard.wait_for_steps(3)
        job.patch(planRef="spread")
        job.wait_until_on("n1", "n2", gpus=2)
        heard.wait_for_steps(3)
        joined = job.epoch
        assert len(heard.state_digests(joined)) == 1
        job.patch(planRef="alone")
        job.wait_until_on("n1", gpus=1)
        heard.wait_for_steps(3)
        heard.assert_nothing_lost()
        assert job.epoch == joined + 1
        found = [(record.step, record.loss) for record in heard.curve.history()]
    expected = losses(tmp_path, min(COMPARED, len(found)))
    for (step, loss), wanted in zip(found, expected, strict=False):
        assert loss == pytest.approx(wanted, abs=TOLERANCE), step


def losses(folder: Path, steps: int) -> list[float]:
    """Of one plain process."""
    from worker.engine.reference.training import train

    prepare([Path(sysconfig.get_paths()["stdlib"])], folder / "text", TEXT_BYTES)
    spec = TrainingSpec(
        model=MODEL.name,
        data=str(folder / "text"),
        global_batch=int(TRAINING["globalBatch"]),
        sequence_length=int(TRAINING["sequenceLength"]),
        learning_rate=TRAINING["learningRate"],
        warmup_steps=int(TRAINING["warmupSteps"]),
        steps=1,
    )
    found, _ = train(spec, MODEL, steps)
    return found
