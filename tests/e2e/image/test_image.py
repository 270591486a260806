"""The project's own image: built by its Dockerfile, and run as the chart runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.assets import Assets, reasons_not_to_start
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.e2e.image.container_image import NoBase, build, buildah, missing

# The build compiles the planner's estimator, which takes a minute or two.
pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]
CHART = Path(__file__).parents[3] / "charts" / "heddle"
MOST_MB = 400  # of the operator's image: what is added to the base, and what a node pulls
ENTRYPOINTS = {"operator": ["python", "-m", "heddle_operator"], "worker": ["heddle"]}
WORDS = {
    "operator": ("run",),
    "worker": ("demo", "plan", "cost", "status", "logs", "data", "worker"),
}
PLANS = """
from planner import Composition, Node, Workload, find_model, plan
node = Node(name="a", gpu_type="demo-fast", gpus=2)
workload = Workload(model=find_model("tiny-llama"), global_batch=8, sequence_length=128)
print(plan(workload, Composition((node,)), budget_evaluations=100).plan.digest)
"""


@pytest.fixture(scope="module", params=["operator", "worker"])
def target(request: pytest.FixtureRequest) -> str:
    """Which of the two images."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def image(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image's name; the tests are skipped, saying why, where none can be built."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    try:
        name = build(target, tmp_path_factory.mktemp("context"))
    except NoBase as error:
        pytest.skip(str(error))
    yield name
    buildah("rmi", name)


@pytest.fixture(scope="module")
def run(image: str) -> Iterator[Callable[..., str]]:
    """Run a command in a container of the image, as the image's user."""
    container = buildah("from", image)
    try:
        yield lambda *words: buildah("run", "--isolation", "chroot", container, "--", *words)
    finally:
        buildah("rm", container)


def test_the_image_runs_its_command_as_nobody_in_particular(target, image, run):
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["Entrypoint"] == ENTRYPOINTS[target]
    assert config["User"] == "65532:65532"
    assert run("id", "-u") == "65532"
    shown = run(*ENTRYPOINTS[target], "--help")
    assert [name for name in WORDS[target] if f"  {name} " not in shown] == []


def test_the_profiles_are_in_the_image(run):
    assert run("python", "-c", PLANS)


def test_only_what_heddle_needs_is_in_the_image(target, run):
    names = set(run("ls", "-A", "/").split())
    assert not names & {"heddle", ".venv", "Dockerfile"}
    packages = set(run("sh", "-c", "ls /opt/heddle/lib/python3*/site-packages").split())
    assert {"planner", "migration", "worker", "heddle_operator", "profiles"} <= packages
    assert not packages & {"tests", "benchmarks", "hatchling", "uv", "pytest", "moto", "scipy"}
    if target == "operator":
        assert not packages & {"heddle", "torch", "deepspeed"}
    else:
        assert "heddle" in packages


def test_the_operators_image_has_no_torch_and_is_small(target, image, run, tmp_path):
    if target == "worker":
        return  # this one is built without its 6 GB here
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("/opt/heddle/bin/python", "-c", "import torch")
    assert "No module named 'torch'" in error.value.stderr
    added_mb = int(run("du", "-sm", "/opt/heddle").split()[0])
    archive = tmp_path / "image.tar"
    buildah("push", image, f"oci-archive:{archive}:{image}")
    pulled_mb = archive.stat().st_size / 1e6
    print(f"{added_mb} MB above the base, {pulled_mb:.0f} MB to pull with the base")
    assert added_mb <= MOST_MB
    assert pulled_mb <= MOST_MB


def test_the_operator_of_the_image_runs_as_the_chart_says(target, image, tmp_path):
    """Not as root, on a read-only root, without capabilities; it answers a job that is wrong."""
    if target == "worker":
        return  # its pods are those of tests/e2e/kubernetes
    assets = Assets.of(os.environ)
    reasons = reasons_not_to_start(assets)
    if reasons:
        pytest.skip("; ".join(reasons))
    archive = tmp_path / "image.tar"
    buildah("push", image, f"docker-archive:{archive}:{image}")
    repository, _, tag = image.rpartition(":")
    values = {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}
    job = {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": "wrong"},
        "spec": {
            "model": {"name": "unknown"},
            "data": {"builtin": "text"},
            "training": {"globalBatch": 1, "sequenceLength": 8},
            "steps": 1,
        },
    }
    with Cluster.start((NodeSpec("n1", gpus=0),), assets=assets) as cluster:
        cluster.load_image(archive)
        options = ("--values=-", "--wait", "--timeout=3m")
        cluster.helm("install", "heddle", str(CHART), *options, stdin=yaml.safe_dump(values))
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(job))
        wait = ("wait", "--for=condition=Accepted=false", "--timeout=60s")
        cluster.kubectl(*wait, "heddlejob/wrong")
        shown = cluster.kubectl("describe", "heddlejob", "wrong")
        assert "InvalidSpec" in shown
        assert "unknown" in shown.split("Message:")[1].splitlines()[0]
        columns = cluster.kubectl("get", "heddlejobs", "--output=wide").splitlines()
        assert columns[0].split()[:3] == ["NAME", "PHASE", "EPOCH"]
        assert "Invalid" in columns[1]
