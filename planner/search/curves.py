"""Throughput by the number of GPUs of one type alone: what GPUs are worth to a job.

Whoever divides GPUs among jobs compares what each would gain.  The curves are drawn by short
searches, so they are near what plans reach, not equal to it; mixed types add up nearly.
Invariant: a curve never falls: more GPUs can stay idle.
Source: goodput-optimised schedulers (Pollux) ask each job for such a curve.
"""

from __future__ import annotations

from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import UNLIMITED
from planner.errors import Infeasible
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.search.driver import search

Curve = tuple[tuple[int, float], ...]
Curves = dict[str, Curve]

_FEW = 16  # GPUs up to which each number is searched; beyond, half as many more each time
_EVALUATIONS = 300  # of each search


def throughput_curves(request: PlanRequest, profile: Profile) -> Curves:
    """{GPU type: ((GPUs, samples per second), ...)}, for types that the profile knows.

    Args:
        request: whose composition has the nodes; of each type the largest are taken first.  Its
            budget, current plan and limits do not count.
        profile: all costs.
    """
    short = replace(
        request,
        current=None,
        max_gpus=UNLIMITED,
        budget_evaluations=_EVALUATIONS,
        budget_s=None,
        threads=1,
    )
    found: Curves = {}
    for gpu_type in request.composition.gpu_types:
        nodes = [node for node in request.composition.nodes if node.gpu_type == gpu_type]
        if gpu_type in profile.types:
            found[gpu_type] = _curve(short, profile, nodes)
    return found


def _curve(request: PlanRequest, profile: Profile, nodes: list[Node]) -> Curve:
    points: list[tuple[int, float]] = []
    best = 0.0
    for gpus in _counts(sum(node.gpus for node in nodes)):
        asked = replace(request, composition=largest_first(nodes, gpus))
        try:
            best = max(best, search(asked, profile).throughput_samples_s)
        except Infeasible:
            continue
        points.append((gpus, best))
    return tuple(points)


def largest_first(nodes: list[Node], gpus: int) -> Composition:
    """So many GPUs of these nodes, the largest nodes first."""
    kept, left = [], gpus
    for node in sorted(nodes, key=lambda node: (-node.gpus, node.name)):
        if left > 0:
            kept.append(replace(node, gpus=min(node.gpus, left)))
            left -= kept[-1].gpus
    return Composition(tuple(kept))


def _counts(most: int) -> list[int]:
    found = list(range(1, min(most, _FEW) + 1))
    while found[-1] < most:
        found.append(min(most, found[-1] + found[-1] // 2))
    return found
