"""Say why no plan fits: which term binds, on which GPU type, and by how much.

The nearest template needs the least memory beyond its GPUs' own, with the split of layers that
minimises memory. Other causes are reported only where memory suffices. Not all templates are
tried, so that less than the named memory may suffice.
Invariant: one sentence, with what was found, what is allowed, and what to do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from planner.cost.memory import StageMemory, StageSlot, stage_memory, usable_bytes
from planner.cost.money import cheapest_price, highest_price
from planner.errors import UnprofiledConfiguration
from planner.estimator.tables import MAX_DEPTH
from planner.model.shape import ModelShape
from planner.placement.place import room_of
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.search.fill import Option, options
from planner.wording import counted

TERMS = {
    "boundary": "boundary activation",
    "communication": "communication buffers",
    "working": "working memory of recomputation",
    "transient": "optimizer transient",
}


MOST_ATTEMPTS = 100  # of a deep model each takes some 40 ms
OF_PARAMETERS = ("weights", "gradients", "optimizer", "optimizer transient")


def why_infeasible(
    request: PlanRequest, profile: Profile, interrupted: Callable[[], bool] = lambda: False
) -> str:
    """One sentence for a request that no plan answers; an interruption makes it less exact."""
    composition, workload = request.composition, request.workload
    if not composition.nodes:
        return "the composition has no GPU; add a node"
    if not request.max_gpus.allowed(composition):
        return (
            f"the limit on GPUs binds: max_gpus allows {request.max_gpus} of the "
            f"{counted(composition.gpus, 'GPU')} there are, which is none; allow at least 1"
        )
    choices = [
        choice
        for choice in options(composition, workload.model, profile)
        if choice[0] in profile.types
    ]
    within = [(kind, tp) for kind, tp in choices if tp <= request.max_gpus.most(kind)]
    if choices and not within:
        least = min(tp for _, tp in choices)
        return (
            f"the limit on GPUs binds: max_gpus allows {request.max_gpus}, the smallest TP group "
            f"of {workload.model.name} takes {counted(least, 'GPU')}; allow more"
        )
    choices = within
    if not choices:
        return (
            f"none of the GPU types {', '.join(composition.gpu_types)} has a profile for "
            f"{workload.model.name}; profiled are {', '.join(sorted(profile.types))}"
        )
    sizes = sorted({b for kind, _ in choices for b in profile.micro_batches(kind)})
    if workload.global_batch < sizes[0]:
        return (
            f"global batch {workload.global_batch} is below the smallest profiled micro-batch "
            f"{sizes[0]}; raise the batch"
        )
    if not _sums_to(workload.global_batch, sizes):
        return (
            f"no sharing meets global batch {workload.global_batch} exactly: the profiled "
            f"micro-batches are {', '.join(map(str, sizes))}; take a batch that is a sum of these"
        )
    return _memory(request, profile, choices, sizes[0], interrupted)


def _sums_to(total: int, sizes: Sequence[int]) -> bool:
    """Whether a number is a sum of these sizes, each as often as needed."""
    reached = [True] + [False] * total
    for number in range(1, total + 1):
        reached[number] = any(size <= number and reached[number - size] for size in sizes)
    return reached[total]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A template without its layers, tried for its memory: stages, replicas, degree of EP."""

    stages: tuple[Option, ...]
    replicas: int = 1
    ep: int = 1

    def __str__(self) -> str:
        groups = " and ".join(
            f"{counted(count, 'stage')} of TP {tp} on {gpu_type}"
            for (gpu_type, tp), count in Counter(self.stages).items()
        )
        spread = f" in {counted(self.replicas, 'replica')} with EP {self.ep}"
        return groups + (spread if self.ep > 1 else "")


def _attempts(
    request: PlanRequest, choices: Sequence[Option], micro_batch: int
) -> Iterator[_Attempt]:
    """The deepest templates of all types together, of one option, and with experts spread.

    Replicas are as many as have a micro-batch each.

    Of all types together, each has the largest TP groups up to a degree: to try all degrees of each
    would take four times as long for every further type.
    """
    room, deepest, limits = room_of(request.composition), request.deepest, request.max_gpus
    experts = request.workload.model.experts
    most_replicas = request.workload.global_batch // micro_batch
    groups = {o: min(room[o], limits.most(o[0])) // o[1] for o in choices}
    by_type: dict[str, list[Option]] = {}
    for option in choices:
        by_type.setdefault(option[0], []).append(option)
    for most in sorted({tp for _, tp in choices}, reverse=True):
        chosen = [
            max((o for o in of if o[1] <= most), key=lambda o: o[1], default=of[0])
            for of in by_type.values()
        ]
        if len(chosen) > 1:
            yield _Attempt(tuple(_within(chosen, groups, limits.total)))
    for option, count in groups.items():
        yield _Attempt((option,) * min(count, deepest))
        replicas = 1
        while experts is not None and request.allow_ep and replicas <= min(count, most_replicas):
            ways = replicas * option[1]
            ep = max(n for n in range(1, ways + 1) if experts.count % n == 0 and ways % n == 0)
            yield _Attempt((option,) * min(count // replicas, deepest), replicas, ep)
            replicas *= 2


def _within(
    chosen: Sequence[Option], groups: Mapping[Option, int], total: int | None
) -> Iterator[Option]:
    """The groups of each option, the first ones first, as far as the total of GPUs allows."""
    left = math.inf if total is None else total
    for option in chosen:
        for _ in range(groups[option]):
            if option[1] <= left:
                left -= option[1]
                yield option


@dataclass(frozen=True, slots=True)
class _Fit:
    """An attempt with its blocks where they lack least memory.

    Attributes:
        attempt: its stages as far as they are allowed.
        short: bytes beyond its own that a GPU needs; 0 if all blocks fit.
        gpu_type: of the stage that lacks most.
        held: what is on a GPU of that stage.
    """

    attempt: _Attempt
    short: int
    gpu_type: str
    held: StageMemory

    @staticmethod
    def of(request: PlanRequest, profile: Profile, attempt: _Attempt, micro_batch: int) -> _Fit:
        """L blocks, at least one on each stage.

        Raises:
            UnprofiledConfiguration: the profile lacks a stage.
        """
        workload, layers = request.workload, request.workload.model.layers
        usable = [usable_bytes(workload, profile.gpu_type(kind)) for kind, _ in attempt.stages]
        # the largest groups, those with most memory first: the first stages hold most in flight
        order = sorted(range(len(usable)), key=lambda s: (-usable[s] * attempt.stages[s][1], s))
        kept = sorted(order[: request.deepest], key=lambda s: (-usable[s], s))
        stages = tuple(attempt.stages[s] for s in kept)
        how = "full" if workload.recompute == "auto" else workload.recompute
        rounds = -(-workload.global_batch // (micro_batch * attempt.replicas))
        lacking = {}
        for s, (kind, tp) in enumerate(stages):
            start = 1 if s == 0 else None  # dense blocks come first
            slot = StageSlot(
                gpu_type=kind,
                tp=tp,
                micro_batch=micro_batch,
                micro_batches=rounds,
                depth=len(kept),
                index=s,
                recompute=how,
                replicas=attempt.replicas,
                ep=attempt.ep,
                etp=1 if attempt.ep > 1 else 0,
                start=start,
            )
            for blocks in range(1, layers + 1):
                held = stage_memory(workload, profile, slot, blocks)
                lacking[s, blocks] = held.peak_bytes - usable[kept[s]], held
        least = sorted(more for more, _ in lacking.values())
        most = max(least[layers - 1], *(lacking[s, 1][0] for s in range(len(kept))))
        (s, _), held = next((k, held) for k, (more, held) in lacking.items() if more == most)
        return _Fit(
            _Attempt(stages, attempt.replicas, attempt.ep), max(0, most), stages[s][0], held
        )


def _memory(
    request: PlanRequest,
    profile: Profile,
    choices: list[Option],
    micro_batch: int,
    interrupted: Callable[[], bool],
) -> str:
    """The attempt that comes nearest to fitting, and what its fullest GPU lacks."""
    workload, nearest, limits = request.workload, None, request.max_gpus
    is_limited = limits.binds(request.composition)
    if is_limited:  # GPUs with most memory come first
        choices = sorted(choices, key=lambda o: -usable_bytes(workload, profile.gpu_type(o[0])))
    for attempt in islice(_attempts(request, choices, micro_batch), MOST_ATTEMPTS):
        if nearest is not None and (nearest.short == 0 or interrupted()):
            break
        try:
            fit = _Fit.of(request, profile, attempt, micro_batch)
        except UnprofiledConfiguration:
            continue
        if nearest is None or fit.short < nearest.short:
            nearest = fit
    assert nearest is not None
    attempt, held = nearest.attempt, nearest.held
    least, most = cheapest_price(request.composition), request.max_price
    if (
        nearest.short == 0
        and most is not None
        and least is not None
        and least > highest_price(most)
    ):
        return (
            f"price binds: the cheapest node costs {least:g} an hour, at most {most:g} may be "
            "spent; spend more, or give cheaper nodes"
        )
    if nearest.short == 0:
        return (
            f"no plan was found, though memory allows {attempt}; give a larger budget, or "
            f"relax D_max, the number of templates, and limits on price or throughput"
            + (", or on GPUs" if is_limited else "")
        )
    term, size = _largest(held)
    allowing = f"this composition and D_max {request.deepest}"
    remedy = "add GPUs, or larger ones"
    if is_limited:
        allowing = f"this composition, max_gpus ({limits}) and D_max {request.deepest}"
        remedy = "allow more GPUs"
    return (
        f"memory binds: with {attempt}, the most that {allowing} allow, {workload.model.name} "
        f"needs {_size(held.peak_bytes)} on a GPU of type {nearest.gpu_type} at micro-batch "
        f"{micro_batch}, {_size(held.peak_bytes - nearest.short)} are usable "
        f"(at most {_size(nearest.short)} short); the largest term is {term} with {_size(size)}; "
        + remedy
        + _hint(request, workload.model, len(attempt.stages), term)
    )


def _largest(held: StageMemory) -> tuple[str, int]:
    """The name and bytes of the largest kind of memory."""
    name = max((field.name for field in fields(held)), key=lambda name: getattr(held, name))
    return TERMS.get(name, name), getattr(held, name)


def _size(number: int) -> str:
    """Bytes in the unit that suits them."""
    size, unit = (number / 1e9, "GB") if number >= 1e9 else (number / 1e6, "MB")
    return f"{size:,.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"


def _hint(request: PlanRequest, model: ModelShape, depth: int, term: str) -> str:
    """Further ways to save memory."""
    ways = []
    if model.experts is not None and not request.allow_ep:
        ways.append("expert parallelism")
    if term not in OF_PARAMETERS and request.workload.recompute not in ("full", "auto"):
        ways.append("recomputation auto")
    if depth == request.deepest < min(model.layers, MAX_DEPTH):
        ways.append("a larger D_max")
    return f", or try {', '.join(ways)}" if ways else ""
