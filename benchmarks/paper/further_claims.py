"""Claims of the paper's evaluation that stand on no cell: measured otherwise, or not told here.

Invariant: a verdict follows from what is stored; what is not measured is said to be so, with why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.claims import UNKNOWN, Verdict
from benchmarks.paper.measured import efficiency, learning
from benchmarks.paper.tables import SAME_PLAN

Measured = Mapping[str, Any]  # what is stored beside the cells, by name
LAST = efficiency.BUDGETS[-1]
FEW_DOZEN = 64  # plans, from which the paper compares flat-RL
LEAST, MOST = 0.05, 0.29  # how far it stays below, in the paper


@dataclass(frozen=True, slots=True)
class FurtherClaim:
    """A claim of the paper, where it stands, and how it is judged."""

    section: str
    says: str
    judge: Callable[[Measured], Verdict]


def _medians(measured: Measured) -> dict[str, float]:
    found = measured.get("efficiency", {})
    return {method: efficiency.median_reached(curves, LAST) for method, curves in found.items()}


def beside_random(measured: Measured) -> Verdict:
    """Random structures against the policy after the last budget; the paper has 0.035 of 0.053."""
    medians = _medians(measured)
    if not medians:
        return UNKNOWN
    share = medians["random"] / medians["policy"]
    return Verdict(f"random reaches {share:.0%} of the policy's after {LAST:,} plans", share < 1)


def beside_mcts(measured: Measured) -> Verdict:
    """The tree search against random structures; the paper has 0.027 of 0.035."""
    medians = _medians(measured)
    if not medians:
        return UNKNOWN
    curve = measured["efficiency"]["MCTS"][0]
    said = (
        f"MCTS reaches {medians['MCTS'] / medians['policy']:.0%} of the policy's after {LAST:,} "
        f"plans, {curve[-1][1] / medians['policy']:.0%} after {curve[-1][0]:,.0f}"
    )
    return Verdict(said, medians["MCTS"] < medians["random"] < medians["policy"])


def beside_flat(measured: Measured) -> Verdict:
    """flat-RL against Heddle's decomposition, which both learn from nothing on the same GPUs."""
    curves = measured.get("flat-rl", {}).get("curves", {})
    if not curves:
        return UNKNOWN
    ours, flat = (learning.budgets_of(curves[kind]) for kind in (learning.LEARNING, learning.FLAT))
    half = max(budget for budget in ours if 2 * budget in flat)
    budgets = [budget for budget in ours if budget in flat and budget >= FEW_DOZEN]

    def rate(kind: str, budget: int) -> float:
        return efficiency.median_reached(curves[kind], budget)

    behind = [1 - rate(learning.FLAT, one) / rate(learning.LEARNING, one) for one in budgets]
    caught_up = rate(learning.FLAT, 2 * half) / rate(learning.LEARNING, half)
    said = (
        f"{min(behind):.0%} to {max(behind):.0%} below a policy that learns here too; after "
        f"{2 * half:,} plans it has {caught_up:.0%} of what that has after {half:,}"
    )
    holds = caught_up >= 1 - SAME_PLAN and min(behind) >= LEAST and max(behind) <= MOST
    return Verdict(said, holds)


def _not_here(why: str) -> Callable[[Measured], Verdict]:
    return lambda _: Verdict(why, None)


FURTHER_CLAIMS = (
    FurtherClaim(
        "6.2",
        "measured throughput of the growing cluster, planning and reconfiguration included",
        _not_here("no such hardware; the plans of each size are modelled, see growth"),
    ),
    FurtherClaim(
        "6.2",
        "the cost model is 6.1 % off on average",
        _not_here("no such testbed; see the comparison with measurements of others"),
    ),
    FurtherClaim(
        "6.4", "after 32,000 plans random reaches 0.035 it/s, Heddle 0.053", beside_random
    ),
    FurtherClaim(
        "6.4", "HetAuto stays below random: 0.027 it/s, 0.031 at eight times", beside_mcts
    ),
    FurtherClaim(
        "6.4",
        "flat-RL needs twice the plans and stays 5 % to 29 % below",
        beside_flat,
    ),
    FurtherClaim(
        "6.4",
        "a reconfiguration stops training for 19.2 s to 21.5 s",
        _not_here("no such hardware; see the stall on emulated devices"),
    ),
)
