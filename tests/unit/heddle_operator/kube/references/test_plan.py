"""The ConfigMap of `planRef` is read again after a while, and at once under another name."""

from __future__ import annotations

import asyncio

from heddle_operator.kube.client import connect
from heddle_operator.kube.references.plan import REFERENCE_S, PlanReference
from tests.fakes.api_server import an_api_server


def test_it_is_read_when_it_is_due(tmp_path):
    async def main():
        async with an_api_server() as server, await connect(server.kubeconfig(tmp_path)) as api:
            reference = PlanReference(api, "ns")
            assert await reference.read(None, 0.0) is None
            missing = await reference.read("chosen", 0.0)
            assert missing.plan is None
            assert "not found" in missing.problem
            await server.put("/api/v1/namespaces/ns/configmaps/chosen", {"data": {}})
            assert await reference.read("chosen", REFERENCE_S) is missing
            found = await reference.read("chosen", REFERENCE_S + 1)
            assert "plan.json" in found.problem

    asyncio.run(main())
