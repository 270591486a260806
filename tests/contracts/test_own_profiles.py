"""At a real API server: a GPU type that only an administrator's profile knows gets pods."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from planner.cluster.composition import Composition, Node
from planner.profiles.profile import PROFILES
from tests.contracts.operator_process import an_operator, free_port
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NODES = Composition((Node(name="field", gpu_type="fpga", gpus=2),))
LIMIT_S = 120.0


@pytest.fixture
def settings(tmp_path):
    """The settings of an operator whose folder of profiles knows FPGAs."""
    own = shutil.copytree(PROFILES / "tiny-llama", tmp_path / "profiles" / "tiny-llama")
    for path in own.glob("*.json"):
        path.write_text(path.read_text().replace("demo-fast", "fpga"))
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"profiles": str(tmp_path / "profiles")}))
    return file


def test_a_job_gets_pods_for_a_type_of_the_administrators_profiles(control_plane, settings):
    async def main():
        async with a_kubernetes(control_plane, a_job(), NODES) as (cluster, wait, _):
            namespace = cluster.kube.job.metadata.namespace
            options = ("--namespace", namespace, "--settings", str(settings))
            pods = f"/api/v1/namespaces/{namespace}/pods"
            async with an_operator(control_plane.kubeconfig, free_port(), "profiles", *options):
                while not (found := (await cluster.api.get(pods))["items"]):
                    await wait(None)
            return found[0]["metadata"]["name"]

    assert asyncio.run(asyncio.wait_for(main(), LIMIT_S)) == "tiny-field-0"
