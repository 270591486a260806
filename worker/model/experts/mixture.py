"""A mixture of experts on one rank: its tokens visit their experts, wherever these are.

Plain tiling (each expert is cut as TP cuts the rest): every rank of the TP group has all tokens and
a part of each expert; what the experts of a token give is weighted and added, then summed over TP.
Any other tiling: each rank of the TP group takes a run of the tokens.  Its rows go to the EP run
that has their expert, are gathered by the ranks of that run, which share the expert, and come back
the same way; then the runs of tokens are joined.
Invariants: the rows of a token are added in the order of its routes, never in that of their
arrival; the router reads what no rank has cut, so its gradient is whole and equal on a TP group.
Source: Shazeer et al., "Outrageously large neural networks"; Megatron-Core's token dispatcher.

Legend: T tokens, k experts of a token, h hidden, E experts, F width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from planner.model.experts import equal_rows
from worker.model.experts import exchange
from worker.model.experts.exchange import Place
from worker.model.experts.products import Stack
from worker.model.experts.routing import Routes
from worker.model.parallel import TensorParallel


class ExpertPlace(NamedTuple):
    """Where the experts of a stage are, as one rank sees it.

    Attributes:
        is_tiled: whether they are spread in another way than TP cuts the rest.
        ep: this rank among those of the EP runs that have its part of an expert; None: it is alone.
        etp: this rank in its ETP run, whose ranks share each expert; None: it is alone.
        host: reads numbers that peers had a part in.
    """

    is_tiled: bool = False
    ep: Place | None = None
    etp: Place | None = None
    host: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu


def visited(
    h: torch.Tensor,
    routes: Routes,
    place: ExpertPlace,
    tp: TensorParallel,
    stack: Stack,
    *,
    is_empty: bool = False,
) -> torch.Tensor:
    """What the experts of each token give, [T, h].

    Args:
        h: the tokens, [T, h], alike on all ranks of the TP group.
        routes: of the tokens, likewise.
        place: of the experts.
        tp: of the stage.
        stack: the experts that this rank has.
        is_empty: whether the tokens are of an empty micro-batch, so that none visits an expert.
    """
    if not place.is_tiled:
        return _plain(h, routes, tp, stack)
    tokens = 0 if is_empty else len(h)
    cuts = [tokens * slot // tp.size for slot in range(tp.size + 1)]
    sizes = [stop - start for start, stop in pairwise(cuts)]
    chosen = routes.chosen[cuts[tp.slot] : cuts[tp.slot + 1]]
    own, weights = h[:tokens], routes.weights[:tokens]
    here = None if tp.group is None or is_empty else Place(tp.group, tp.slot)
    if here is not None:
        own, weights = (exchange.cut(one, here, sizes) for one in (own, weights))
    etp = 1 if place.etp is None else len(place.etp.group.ranks)
    most = equal_rows(chosen.shape[1], len(h), tp.size, etp)
    found = _travelled(own, chosen, weights, place, routes.scores.shape[1], stack, most)
    if here is not None:
        return exchange.joined(found, here, sizes)
    # of an empty micro-batch the graph goes through the exchange, with no row of this rank
    return torch.cat([found, torch.zeros_like(h)]) if is_empty else found


def _plain(h: torch.Tensor, routes: Routes, tp: TensorParallel, stack: Stack) -> torch.Tensor:
    """All tokens and a part of each expert on every rank."""
    order, counts = _by_expert(routes.chosen, routes.scores.shape[1])
    rows = tp.copy(h)[order // routes.chosen.shape[1]]
    found = stack.of_all(rows, counts.cumsum(0).to(torch.int32))
    return tp.reduce(_added(found, order, tp.copy(routes.weights), h.dtype))


def _travelled(
    h: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    place: ExpertPlace,
    experts: int,
    stack: Stack,
    most: float,
) -> torch.Tensor:
    """Tokens of this rank alone, whose rows go to the ranks that have their experts, and back.

    Of at most `most` rows that come here, the experts keep what they compute (`Stack.bounded`).
    """
    ep, etp = (len(one.group.ranks) if one else 1 for one in (place.ep, place.etp))
    order, counts = _by_expert(chosen, experts)
    counts = counts.view(ep, experts // ep)
    come = counts  # [sender, own expert] of this rank
    if place.ep is not None:
        come = exchange.exchanged(counts, place.ep.group, [1] * ep, [1] * ep)
    table = come[None]  # [ETP rank, sender, own expert] of the run
    if place.etp is not None:
        table = exchange.gathered(come[None], place.etp, [1] * etp)
    to, senders, shares, sizes = _read(counts, table, place)
    rows = h[order // chosen.shape[1]]
    if place.ep is not None:
        rows = exchange.exchanged(rows, place.ep.group, to, senders)
    if place.etp is not None:
        rows = exchange.gathered(rows, place.etp, shares)
    there = _regrouped(table, len(rows))
    ends = table.sum((0, 1)).cumsum(0).to(torch.int32)
    found = (
        stack.bounded(rows[there], ends, sizes, most) if sizes else stack.of_all(rows[there], ends)
    )
    found = torch.empty_like(found).index_copy(0, there, found)
    if place.etp is not None:
        found = exchange.summed(found, place.etp, shares)
    if place.ep is not None:
        found = exchange.exchanged(found, place.ep.group, senders, to)
    return _added(found, order, weights, h.dtype)


def _read(
    counts: torch.Tensor, table: torch.Tensor, place: ExpertPlace
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Rows to each EP run, from each of its ranks, of each ETP rank, and of each own expert.

    The host waits once, and not at all where no row travels.
    """
    if place.ep is None and place.etp is None:
        return [], [], [], []
    own = table[0 if place.etp is None else place.etp.number]
    sums = counts.sum(1), own.sum(1), table.sum((1, 2)), table.sum((0, 1))
    told = [int(number) for number in place.host(torch.cat(sums))]
    first, second, third = accumulate(len(one) for one in sums[:3])
    return told[:first], told[first:second], told[second:third], told[third:]


def _by_expert(chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The visits [T k] in the order of their experts, and how many each expert has [E]."""
    flat = chosen.flatten()
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return flat.argsort(stable=True), counts


def _regrouped(table: torch.Tensor, total: int) -> torch.Tensor:
    """The places of rows in the order of the experts, where they come by rank, sender and expert.

    Args:
        table: how many rows there are, [ETP ranks, senders, own experts].
        total: of them all, which the host knows.
    """
    experts = torch.arange(table.shape[2], device=table.device).repeat(table[..., 0].numel())
    of_row = experts.repeat_interleave(table.flatten(), output_size=total)
    return of_row.argsort(stable=True)


def _added(
    rows: torch.Tensor, order: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The rows of each token, weighted and added in the weights' precision, in their order."""
    tokens, visits = weights.shape
    back = torch.empty_like(rows).index_copy(0, order, rows).view(tokens, visits, rows.shape[-1])
    total = weights[:, 0, None] * back[:, 0]
    for visit in range(1, visits):
        total = total + weights[:, visit, None] * back[:, visit]
    return total.to(dtype)
