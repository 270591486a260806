"""Files that an earlier version wrote stay readable: plans, profiles, policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.model.workload import Workload
from planner.plans.plan import Plan, check
from planner.policy.weights import Policy, load_policy
from planner.profiles.profile import PROFILES, load_profile

PLANS = sorted((Path(__file__).parents[2] / "data" / "formats").glob("plan-*.json"))
POLICIES = sorted(folder.parent for folder in PROFILES.rglob("card.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_of_an_earlier_version_is_the_same_plan(path):
    data = json.loads(path.read_text())
    workload = Workload.from_json(data["workload"])
    composition = Composition.from_json(data["composition"])
    plan = Plan.from_json(data)
    assert plan.digest == data["digest"]
    check(plan, workload, composition)
    profile = load_profile(workload.model.name)
    assert profile.digest == data["profile_digest"]
    assert cost_of(plan, workload, composition, profile).iteration_s > 0


@pytest.mark.parametrize("folder", POLICIES, ids=lambda folder: folder.parent.name)
def test_a_policy_that_comes_with_heddle_is_read(folder):
    assert isinstance(load_policy(folder), Policy)
