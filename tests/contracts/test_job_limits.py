"""The API server lets steps grow and nothing else of them; limits are numbers that make sense."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import ApiRefused, connect
from tests.fakes.kubernetes import JOBS

pytestmark = pytest.mark.slow

PATH = f"{JOBS}/namespaces/default/heddlejobs"
SPEC = {
    "model": {"name": "tiny-llama"},
    "data": {"builtin": "text"},
    "training": {"globalBatch": 8, "sequenceLength": 128},
    "steps": 100,
}


def test_steps_may_grow_and_limits_are_checked(control_plane):
    async def main():
        async with await connect(kubeconfig=control_plane.kubeconfig) as api:
            body = {"apiVersion": "heddle.dev/v1alpha1", "kind": "HeddleJob"}
            await api.create(PATH, {**body, "metadata": {"name": "grows"}, "spec": SPEC})
            grown = await api.patch(f"{PATH}/grows", {"spec": {"steps": 200}})
            assert grown["metadata"]["generation"] == 2
            for spec, words in (
                ({"steps": 199}, "spec.steps may only grow"),
                ({"deadlineSeconds": 0}, "greater than or equal to 1"),
                ({"backoffLimit": -1}, "greater than or equal to 0"),
                ({"ttlSecondsAfterFinished": -1}, "greater than or equal to 0"),
            ):
                with pytest.raises(ApiRefused) as refused:
                    await api.patch(f"{PATH}/grows", {"spec": spec})
                assert words in str(refused.value)
            limits = {"deadlineSeconds": 60, "backoffLimit": 0, "ttlSecondsAfterFinished": 0}
            assert (await api.patch(f"{PATH}/grows", {"spec": limits}))["spec"]["backoffLimit"] == 0
            await api.delete(f"{PATH}/grows", uid=grown["metadata"]["uid"])

    asyncio.run(asyncio.wait_for(main(), 60))
