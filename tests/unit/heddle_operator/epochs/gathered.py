"""Jobs whose next epoch gathers its pods, and a look at them."""

from __future__ import annotations

import dataclasses

from heddle_operator.epochs.decide import decide
from heddle_operator.state.settings import Settings
from tests.fakes.operator import view_of, waiting

LIMITS = Settings()


def gathering(*nodes, joiner="b"):
    """A job that trains on `nodes` and gathers pods for a plan with the joiner."""
    operator = waiting(*nodes)
    if nodes:
        operator.settle()
    operator.cluster.add_node(joiner)
    newest = len(operator.cluster.records.all)
    while len(operator.cluster.records.all) == newest:
        operator.reconcile()
        operator.cluster.answer_plans()
    return operator


def look(operator, later=0.0, **changes):
    observed = dataclasses.replace(operator.cluster.snapshot(), **changes)
    return decide(view_of(operator.job, observed, operator.cluster.now + later, settings=LIMITS))
