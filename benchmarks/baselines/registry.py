"""The baselines by name, as commands and figures write them."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.baselines import amp, espresso, hexiscale, mcts, metis, sailor
from benchmarks.baselines.interface import Baseline
from planner.errors import InvalidRequest
from planner.wording import did_you_mean

BASELINES: Mapping[str, Baseline] = {
    "amp": amp.plan,
    "espresso": espresso.plan,
    "hexiscale": hexiscale.plan,
    "metis": metis.plan,
    "sailor": sailor.plan,
    "mcts": mcts.plan,
}
TITLES: Mapping[str, str] = {
    "amp": "AMP",
    "espresso": "Espresso",
    "hexiscale": "HexiScale",
    "metis": "Metis",
    "sailor": "Sailor",
    "mcts": "MCTS",
}


def find_baseline(name: str) -> Baseline:
    """The baseline of that name.

    Raises:
        InvalidRequest: there is none; the message lists those there are.
    """
    if name not in BASELINES:
        raise InvalidRequest(
            f"baseline {name!r} is unknown{did_you_mean(name, BASELINES)}; the baselines are "
            f"{', '.join(BASELINES)}",
            field="baseline",
            code="Unknown",
        )
    return BASELINES[name]
