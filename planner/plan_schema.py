"""The JSON of a plan, checked before anything is built from it.

Invariant: what passes has every key with a value of the right type; whether it tiles model, batch
and nodes is `planner.plan.faults`' question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import InvalidPlan
from planner.json_form import Misfit, list_of, one_of, optional, record, text, whole

COUNT, INDEX = whole(1), whole(0)
STAGE = record(
    {"gpu_type": text, "tp": COUNT, "layers": whole()},
    {
        "recompute": (one_of("none", "selective", "full"), "none"),
        "ep": (COUNT, 1),
        "etp": (optional(COUNT), None),
    },
    is_closed=False,
)
TEMPLATE = record(
    {"stages": list_of(STAGE), "micro_batch": whole(), "micro_batches": list_of(whole())},
    is_closed=False,
)
PLACED = record(
    {
        "template": INDEX,
        "replica": INDEX,
        "stage": INDEX,
        "node": text,
        "gpus": list_of(INDEX),
    },
    is_closed=False,
)
PLAN = record(
    {"templates": list_of(TEMPLATE), "placement": list_of(PLACED)},
    {"digest": (optional(text), None)},
    is_closed=False,
)


def read_rows(data: Mapping[str, Any]) -> dict[str, Any]:
    """Check the JSON of a plan; further keys (prices, origin, workload) are left out.

    Returns:
        `templates`, each with `stages`; `placement`; `digest`, None if it states none.

    Raises:
        InvalidPlan: the first wrong key, with what was found and what was expected.
    """
    try:
        rows: dict[str, Any] = PLAN(data)
    except Misfit as misfit:
        what = (
            f"the key {misfit.key!r} is missing"
            if misfit.found is None
            else f"{misfit.key or 'the whole'} is {misfit.found}, expected {misfit.expected}"
        )
        raise InvalidPlan(
            f"this is not a plan: {what}; `heddle plan --output json` prints one"
        ) from None
    return rows
