"""The plan in the ConfigMap that `spec.planRef` names.

Invariant: what cannot be read is a sentence, never an error; it quotes nothing of the ConfigMap,
for who wrote the job need not be allowed to read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from heddle_operator.state.plan_reply import ReferencedPlan
from planner.errors import HeddleError
from planner.plans.plan import Plan

KEY = "plan.json"
_NO_PLAN = f"{KEY} holds no plan; `heddle cost FILE` names the mistake"


def read_plan_reference(name: str, data: Mapping[str, str]) -> ReferencedPlan:
    """The plan in a ConfigMap's data: `plan.json`, or its only key."""
    if KEY not in data and len(data) != 1:
        return ReferencedPlan(name, None, f"it must hold the key {KEY}")
    text = data[KEY] if KEY in data else next(iter(data.values()))
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        return ReferencedPlan(name, None, f"{KEY} is not JSON")
    if not isinstance(stated, dict):
        return ReferencedPlan(name, None, f"{KEY} is not a JSON object")
    try:
        return ReferencedPlan(name, Plan.from_json(stated))
    except HeddleError:
        return ReferencedPlan(name, None, _NO_PLAN)
