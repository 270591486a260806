"""Throughput by the number of GPUs of one type alone, and of types that need each other.

Whoever divides GPUs among jobs compares what each would gain.  The curves are drawn by short
searches, so they are near what plans reach, not equal to it.  The throughputs of types that train
alone add up nearly; where a type's memory is too small alone, mixes with others are searched.  Of
few GPUs all mixes are.
Invariant: a curve never falls: more GPUs can stay idle.  Whoever keeps the rates of searches that
were done before an interruption goes on from there.
Source: goodput-optimised schedulers (Pollux) ask each job for such a curve.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import UNLIMITED
from planner.errors import Infeasible
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.search.budget import never
from planner.search.driver import search

Curve = tuple[tuple[int, float], ...]
Curves = dict[str, Curve]
Mix = tuple[tuple[int, ...], float]
Rates = MutableMapping[tuple[Node, ...], float]  # samples per second of short searches, by nodes

_FEW = 16  # GPUs up to which each number is searched; beyond, half as many more each time
_EVALUATIONS = 300  # of each search
_ALL = 150  # mixes, of which all are searched
_NEEDED = 64  # mixes that are searched where there are more, those of the fewest GPUs
_MOST_MIXED = 16  # GPUs of a mix


def throughput_curves(
    request: PlanRequest,
    profile: Profile,
    interrupted: Callable[[], bool] = never,
    known: Rates | None = None,
) -> Curves:
    """{GPU type: ((GPUs, samples per second), ...)}, for types that the profile knows.

    Args:
        request: whose composition has the nodes; of each type the largest are taken first.  Its
            budget, current plan and limits on GPUs do not count.
        profile: all costs.
        interrupted: whether to end now.
        known: searches of this request and profile that were done; takes over further ones.

    Raises:
        KeyboardInterrupt: it was interrupted: part of the curves would mislead.
    """
    rate_of = _short_searches(request, profile, interrupted, {} if known is None else known)
    return {
        gpu_type: _curve(nodes, rate_of)
        for gpu_type, nodes in _known_nodes(request, profile).items()
    }


def mixed_throughputs(
    request: PlanRequest,
    profile: Profile,
    curves: Mapping[str, Curve],
    interrupted: Callable[[], bool] = never,
    known: Rates | None = None,
) -> tuple[tuple[Mix, ...], bool]:
    """Throughput of several types in one plan: of all mixes where they are few.

    Else of those in which one type is too small alone.

    Args:
        request: of the curves.
        profile: of the curves.
        curves: what `throughput_curves` found.
        interrupted: whether to end now.
        known: see `throughput_curves`.

    Returns:
        GPUs by type, in the order of the sorted types, and samples per second, fewest GPUs first;
        whether these are all mixes that have a plan.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    rate_of = _short_searches(request, profile, interrupted, {} if known is None else known)
    nodes = _known_nodes(request, profile)
    types = sorted(nodes)
    there = [sum(node.gpus for node in nodes[t]) for t in types]
    asked = list(itertools.islice(mixes(there), _ALL + 1))
    is_complete = len(asked) <= _ALL and sum(there) <= _MOST_MIXED
    if not is_complete:
        least = [curves[t][0][0] if curves[t] else sys.maxsize for t in types]
        asked = list(needed_mixes(there, least))
    found: list[Mix] = []
    for mix in asked:
        parts = [largest_first(nodes[t], gpus) for t, gpus in zip(types, mix, strict=True) if gpus]
        on = [node for part in parts for node in part.nodes]
        rate = rate_of(on)
        if rate:
            found.append((mix, rate))
    return tuple(found), is_complete


def needed_mixes(there: list[int], least: list[int]) -> Iterator[tuple[int, ...]]:
    """Mixes of which one type has fewer GPUs than it needs alone, so many as are searched.

    Args:
        there: GPUs by type.
        least: GPUs by type that have a plan alone.
    """
    needed = (
        mix for mix in mixes(there) if any(0 < n < m for n, m in zip(mix, least, strict=True))
    )
    return itertools.islice(needed, _NEEDED)


def mixes(there: list[int]) -> Iterator[tuple[int, ...]]:
    """GPUs by type of two types or more, fewest GPUs first."""
    totals = range(2, min(_MOST_MIXED, sum(there)) + 1)
    return (mix for total in totals for mix in _splits(total, there) if max(mix) < total)


def _splits(total: int, there: list[int]) -> Iterator[tuple[int, ...]]:
    """All choices of so many GPUs among those of each type."""
    if len(there) == 1:
        if total <= there[0]:
            yield (total,)
        return
    for gpus in range(min(total, there[0]) + 1):
        for rest in _splits(total - gpus, there[1:]):
            yield (gpus, *rest)


def _known_nodes(request: PlanRequest, profile: Profile) -> dict[str, list[Node]]:
    """Nodes by GPU type, of types that the profile knows."""
    return {
        gpu_type: [node for node in request.composition.nodes if node.gpu_type == gpu_type]
        for gpu_type in request.composition.gpu_types
        if gpu_type in profile.types
    }


def _curve(nodes: list[Node], rate_of: Callable[[Iterable[Node]], float]) -> Curve:
    points: list[tuple[int, float]] = []
    best = 0.0
    for gpus in _counts(sum(node.gpus for node in nodes)):
        rate = rate_of(largest_first(nodes, gpus).nodes)
        if rate:
            best = max(best, rate)
            points.append((gpus, best))
    return tuple(points)


def _short_searches(
    request: PlanRequest, profile: Profile, interrupted: Callable[[], bool], known: Rates
) -> Callable[[Iterable[Node]], float]:
    """Samples per second of a short search on nodes, done once; it ends between two of them."""

    def rate_of(nodes: Iterable[Node]) -> float:
        key = tuple(nodes)
        if key not in known:
            if interrupted():
                raise KeyboardInterrupt
            known[key] = _throughput(request, profile, key)
        return known[key]

    return rate_of


def _throughput(request: PlanRequest, profile: Profile, nodes: Iterable[Node]) -> float:
    """Samples per second of a short search on these nodes; 0 without a plan.

    Where none fits without ZeRO, and the request lets it be used, it is.
    """
    short = replace(
        request,
        composition=Composition(tuple(nodes)),
        current=None,
        max_gpus=UNLIMITED,
        budget_evaluations=_EVALUATIONS,
        budget_s=None,
        threads=1,
    )
    asked = [short]
    if request.zero_where_needed and not request.workload.zero:
        asked.append(replace(short, workload=replace(request.workload, zero=1)))
    for one in asked:
        with contextlib.suppress(Infeasible):
            return search(one, profile).throughput_samples_s
    return 0.0


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
