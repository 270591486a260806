"""The plan in the ConfigMap that `spec.planRef` names.

Invariant: what cannot be read is a sentence, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from heddle_operator.state.snapshot import ReferencedPlan
from planner.errors import HeddleError
from planner.plans.plan import Plan

KEY = "plan.json"


def read_plan_reference(name: str, data: Mapping[str, str]) -> ReferencedPlan:
    """The plan in a ConfigMap's data: `plan.json`, or its only key."""
    if KEY not in data and len(data) != 1:
        found = ", ".join(sorted(data)) or "nothing"
        return ReferencedPlan(name, None, f"it must hold the key {KEY}, found {found}")
    text = data[KEY] if KEY in data else next(iter(data.values()))
    try:
        stated = json.loads(text)
    except ValueError as error:
        return ReferencedPlan(name, None, f"it is not JSON: {error}")
    if not isinstance(stated, dict):
        return ReferencedPlan(name, None, f"a plan is a JSON object, found {type(stated).__name__}")
    try:
        return ReferencedPlan(name, Plan.from_json(stated))
    except HeddleError as error:
        return ReferencedPlan(name, None, str(error))
