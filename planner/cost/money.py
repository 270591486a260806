"""Cost of a plan's nodes in money, and cost of a sample.

Invariant: a node that a plan uses is paid as a whole, its idle GPUs and hosts included; a node that
the plan leaves alone is not paid.
Prices are the user's, in any currency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import PlanCost
from planner.errors import InvalidComposition
from planner.plans.plan import Plan

SECONDS_PER_HOUR = 3600
DEAREST = 1e15  # of a GPU-hour, or of a plan; beyond it somebody has mistyped
LEAST = 1e-9  # of a GPU-hour, or of a plan, where money is minimised
ROUNDED = 1 + 1e-9  # sums of prices differ by their order


def with_prices(composition: Composition, per_gpu_hour: Mapping[str, float]) -> Composition:
    """The composition with a price, by GPU type, on every node that states none of its own."""
    nodes = list(composition.nodes)
    for index, node in enumerate(nodes):
        if node.price is None and node.gpu_type in per_gpu_hour:
            nodes[index] = replace(node, price=node.gpus * per_gpu_hour[node.gpu_type])
    return Composition(tuple(nodes))


def require_prices(composition: Composition) -> None:
    """Check that every node has a price.

    Raises:
        InvalidComposition: one has none; the message names it.
    """
    for node in composition.nodes:
        if node.price is None:
            raise InvalidComposition(
                f"node {node.name!r} has no price; add {node.gpu_type!r} to {{field}} "
                f"(money per GPU-hour), or `price` to the node",
                field="prices",
                code="PriceMissing",
            )


def cheapest_price(composition: Composition) -> float | None:
    """Money per hour of the cheapest node; None if no node has a price."""
    return min((node.price for node in composition.nodes if node.price is not None), default=None)


def plan_price(plan: Plan, composition: Composition) -> float | None:
    """Money per hour of the nodes that a plan uses; None if one of them has no price."""
    used = set(plan.nodes)
    return nodes_price(node for node in composition.nodes if node.name in used)


def nodes_price(nodes: Iterable[Node]) -> float | None:
    """Money per hour of nodes, hosts of one node paid once; None if one of them has no price."""
    prices = {node.whole: node.price for node in nodes}.values()
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def highest_price(most: float | None) -> float:
    """Money per hour up to which a sum of prices is within a limit; infinite without one."""
    return math.inf if most is None else most * ROUNDED


def minimised_price(per_hour: float) -> float:
    """Weight of money while it is minimised: next to nothing where it is nothing.

    So the fastest of all plans that cost nothing is the best.
    """
    return max(per_hour, LEAST)


def money_per_sample(plan: Plan, cost: PlanCost, composition: Composition) -> float | None:
    """Money that training one sample costs; None if a node of the plan has no price."""
    per_hour = plan_price(plan, composition)
    if per_hour is None:
        return None
    return per_hour / SECONDS_PER_HOUR / cost.throughput_samples_s
