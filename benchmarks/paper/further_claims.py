"""Claims of the paper's evaluation that stand on no cell: measured otherwise, or not told here.

Invariant: a verdict follows from what is stored; what is not measured is said to be so, with why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.paper.claims import UNKNOWN, Verdict
from benchmarks.paper.measured import (
    efficiency,
    growth,
    growth_on_kubelets,
    learning,
    reconfiguration,
)
from benchmarks.paper.tables import HEDDLE, SAME_PLAN

Measured = Mapping[str, Any]  # what is stored beside the cells, by name
LAST = efficiency.BUDGETS[-1]
FEW_DOZEN = 64  # plans, from which the paper compares flat-RL
NOT_MEASURED = Verdict("not measured on emulated devices, and no such hardware", None)
LARGEST = 19  # GPUs of the growing cluster
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


def while_growing(measured: Measured) -> Verdict:
    """Throughput of each size on emulated devices, breaks included: Heddle beside the baselines."""
    trained = measured.get("growth-trained", {}).get("trained", {})
    if HEDDLE not in trained:
        return NOT_MEASURED
    if any(run["ended"] for run in trained.values()):
        return Verdict("a job on emulated devices ended before the last size", None)
    by_planner = {name: [rate for rate, _ in growth.rates(run)] for name, run in trained.items()}
    ours = by_planner.pop(HEDDLE)
    rising = [name for name, rates in by_planner.items() if _rises(rates)]
    said = f"on emulated devices {ours[0]:.1f} to {ours[-1]:.1f} samples/s, "
    said += "never falling" if _rises(ours) else "and it falls"
    if not by_planner:
        return Verdict(f"{said}; no baseline was trained", None)
    leads = [mine / max(each) - 1 for mine, *each in zip(ours, *by_planner.values(), strict=True)]
    said += f"; {min(leads):+.0%} to {max(leads):+.0%} beside {len(by_planner)} baselines"
    return Verdict(said, _rises(ours) and not rising and min(leads) > 0)


def drops_a5000_on_kubelets(measured: Measured) -> Verdict:
    """On 19 GPUs the operator leaves out the A5000, on emulated kubelets."""
    run = measured.get("growth-kubelets", {}).get("trained", {}).get(HEDDLE)
    if run is None:
        return NOT_MEASURED
    last = run["sizes"][-1]
    used = last["by_type"].get(growth_on_kubelets.WATCHED, 0)
    said = f"on emulated kubelets the operator's plan for {last['gpus']} GPUs uses {used} A5000"
    return Verdict(said, not used if last["gpus"] == LARGEST else None)


def _rises(rates: list[float]) -> bool:
    return all(later >= before for before, later in pairwise(rates))


def pause(measured: Measured) -> Verdict:
    """Stalls on emulated devices, which are no GPU's: the claim stays open beside the figure."""
    found = measured.get("reconfiguration")
    if not found:
        return NOT_MEASURED
    stalls = reconfiguration.stalls_s(found)
    return Verdict(
        f"{min(stalls):.2f} s to {max(stalls):.2f} s in {len(stalls)} joins of emulated devices; "
        "the model is narrow and no GPU took part",
        None,
    )


def _not_here(why: str) -> Callable[[Measured], Verdict]:
    return lambda _: Verdict(why, None)


FURTHER_CLAIMS = (
    FurtherClaim(
        "6.2",
        "as it grows, only Heddle's measured throughput never falls, and it leads at every size",
        while_growing,
    ),
    FurtherClaim("6.2", "on 19 GPUs the running job leaves out the A5000", drops_a5000_on_kubelets),
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
        pause,
    ),
)
