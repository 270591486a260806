"""What a user may change of a job that runs: it is taken, or refused at once in a sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heddle_operator.apis.heddlejob import mistakes_of
from heddle_operator.kube.client import ApiRefused, connect
from tests.builders import heddle_job
from tests.fakes.kubernetes import JOBS

pytestmark = pytest.mark.slow

PATH = f"{JOBS}/namespaces/default/heddlejobs"
SPEC = {
    "steps": 200,
    "output": {"path": "/out"},
    "elastic": {"minGPUs": 2, "maxGPUs": 8},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": {"name": "llama-3-8b"}}, "spec.model cannot be changed"),
    "other data": ({"data": {"builtin": "bytes"}}, "spec.data"),
    "another split": ({"data": {"split": [90, 10, 0]}}, "spec.data cannot be changed"),
    "another batch": ({"training": {"globalBatch": 16}}, "spec.training cannot be changed"),
    "another rate": ({"training": {"learningRate": 0.1}}, "spec.training cannot be changed"),
    "another seed": ({"training": {"seed": 7}}, "spec.training cannot be changed"),
    "another output": ({"output": {"path": "/x"}}, "spec.output cannot be changed"),
    "no output": ({"output": None}, "spec.output cannot be changed"),
    "fewer steps": ({"steps": 100}, "spec.steps may only grow"),
    "min above max": ({"elastic": {"minGPUs": 9}}, "minGPUs is above maxGPUs"),
    "no budget": ({"planner": {"budgetSeconds": 0}}, "budgetSeconds"),
    "another stage of ZeRO": ({"planner": {"zero": 2}}, "spec.planner.zero"),
    "a path as planRef": ({"planRef": "a/b"}, "spec.planRef is the name of a ConfigMap"),
    "a negative time to live": ({"ttlSecondsAfterFinished": -1}, "ttlSecondsAfterFinished"),
    "suspension without a path": ({"suspend": True}, "spec.suspend needs spec.checkpoint"),
    "checkpoints, later": ({"checkpoint": {"path": "/saves"}}, "spec.checkpoint cannot be added"),
    "another answer to NaN": ({"training": {"onNonFinite": "Skip"}}, "spec.training cannot be"),
}
TAKEN: dict[str, dict[str, Any]] = {
    "another check": {"elastic": {"verify": "Full"}},
    "more steps": {"steps": 3000},
    "a lower limit": {"elastic": {"maxGPUs": 4}},
    "no limit": {"elastic": {"maxGPUs": None}},
    "another mode": {"elastic": {"mode": "Recommend"}},
    "a plan of one's own": {"planRef": "mine", "elastic": {"mode": "Manual"}},
    "a deadline": {"deadlineSeconds": 600},
    "logs as JSON": {"worker": {"logFormat": "json"}},
    "recomputation": {"planner": {"recompute": "full"}},
    "ZeRO": {"planner": {"zero": "Auto"}},
    "a stage of ZeRO": {"planner": {"zero": 1}},
    "Off as YAML reads it": {"planner": {"zero": False}},
    "more holders": {"elastic": {"minHolders": 2}},
    "pods with a label": {"worker": {"template": {"metadata": {"labels": {"team": "a"}}}}},
}


def run(control_plane, test, **spec):
    """A test on a job that is there, as its operator reads it."""

    async def main():
        async with await connect(kubeconfig=control_plane.kubeconfig) as api:
            made = await api.create(PATH, heddle_job("edited", **SPEC, **spec))
            try:
                await test(api, made)
            finally:
                await api.delete(f"{PATH}/edited", uid=made["metadata"]["uid"])

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("edit", REFUSED)
def test_what_the_training_depends_on_and_what_cannot_be_meant_is_refused(control_plane, edit):
    change, words = REFUSED[edit]

    async def test(api, made):
        with pytest.raises(ApiRefused) as refused:
            await api.patch(f"{PATH}/edited", {"spec": change})
        assert refused.value.status == 422
        assert words in str(refused.value)
        assert (await api.get(f"{PATH}/edited"))["spec"] == made["spec"]

    run(control_plane, test)


@pytest.mark.parametrize("edit", TAKEN)
def test_how_the_job_follows_its_cluster_may_be_changed_while_it_runs(control_plane, edit):
    async def test(api, made):
        changed = await api.patch(f"{PATH}/edited", {"spec": TAKEN[edit]})
        assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1
        assert mistakes_of(changed) == ()

    run(control_plane, test)


SAVING_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another path": ({"path": "/other"}, "spec.checkpoint cannot be added"),
    "two intervals": ({"interval": {"steps": 5, "seconds": 5}}, "exactly one of steps and seconds"),
    "no interval in it": ({"interval": {"steps": None}}, "exactly one of steps and seconds"),
    "none kept": ({"keep": {"last": 0}}, "keep.last"),
    "the best by no loss": ({"keep": {"best": True}}, "keep.best needs a held-out loss"),
}


@pytest.mark.parametrize("edit", SAVING_REFUSED)
def test_how_often_a_job_saves_may_be_changed_and_where_may_not(control_plane, edit):
    change, words = SAVING_REFUSED[edit]

    async def test(api, made):
        with pytest.raises(ApiRefused) as refused:
            await api.patch(f"{PATH}/edited", {"spec": {"checkpoint": change}})
        assert words in str(refused.value)
        often = {"interval": {"steps": 7}, "keep": {"last": 3, "best": False}}
        changed = await api.patch(f"{PATH}/edited", {"spec": {"checkpoint": often}})
        assert changed["spec"]["checkpoint"] == {"path": "/saves", **often}
        changed = await api.patch(f"{PATH}/edited", {"spec": {"suspend": True}})
        assert mistakes_of(changed) == ()

    run(control_plane, test, checkpoint={"path": "/saves", "interval": {"steps": 5}})
