"""What the adapter tells of a pod that the API server does not create, and for how long."""

from __future__ import annotations

import math

import pytest

from heddle_operator.apis.errors import ClusterUnavailable
from heddle_operator.state.actions import CloseEpoch, CreatePod
from tests.unit.heddle_operator.kube.around import ADOPT, runner

POD = CreatePod("tiny-a-0", "a", 0, 2)
NS = "/api/v1/namespaces/ns"
EARLIER = {
    "ownerReferences": [{"uid": "earlier", "controller": True, "kind": "HeddleJob", "name": "tiny"}]
}


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


def test_a_pod_that_a_quota_forbids_is_a_refusal_and_no_error(run):
    async def test(around, server):
        server.refuses["POST pods"] = (403, "exceeded quota: gpus")
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(POD)
        (refused,) = (await around.observe()).refusals
        assert (refused.name, refused.message) == ("tiny-a-0", "exceeded quota: gpus")
        server.refuses.clear()
        await around.adapter.apply(POD)
        assert (await around.observe()).refusals == ()

    run(test)


def test_a_pod_of_that_name_of_an_earlier_job_is_refused_until_it_is_gone(run):
    async def test(around, server):
        await server.put(f"{NS}/pods/tiny-a-0", {"metadata": EARLIER})
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(POD)
        assert [refused.name for refused in (await around.observe()).refusals] == ["tiny-a-0"]
        server.refuses["GET tiny-a-0"] = (503, "no leader")
        with pytest.raises(ClusterUnavailable):
            await around.adapter.apply(POD)
        server.refuses.clear()
        await server.remove(f"{NS}/pods/tiny-a-0")
        await around.adapter.apply(POD)
        observed = await around.observe()
        assert ([pod.name for pod in observed.pods], observed.refusals) == (["tiny-a-0"], ())

    run(test)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_make_a_pod_just_now_says_nothing_of_its_node(run, status):
    async def test(around, server):
        server.refuses["POST pods"] = (status, "failed calling webhook")
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(POD)
        (refused,) = (await around.observe()).refusals
        assert (refused.message, refused.since_s) == ("failed calling webhook", math.inf)

    run(test)


def test_a_refusal_is_as_old_as_the_first_and_goes_with_the_epoch_that_wants_the_pod(run):
    async def test(around, server):
        server.refuses["POST pods"] = (403, "exceeded quota: gpus")
        await around.adapter.apply(ADOPT)
        for _ in range(2):
            await around.adapter.apply(POD)
        (refused,) = (await around.observe()).refusals
        assert refused.since_s < refused.at_s
        await around.adapter.apply(CloseEpoch(epoch=1, outcome="aborted"))
        assert (await around.observe()).refusals == ()

    run(test)
