"""One rank's part in a change of epoch, worked out from the directive alone.

Pure: every rank computes the same from the same directive, so senders, receivers and sizes agree
without negotiation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from migration.classes import bytes_missing
from migration.layout import StateLayout, held_layout, needed_layout
from migration.links import Links, node_indices, profile_links
from migration.slices import Slice
from migration.transfer import Transfer, plan_transfer
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, region_pieces
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat
from planner.plans.regions import Cuts, state_refinement
from planner.profiles.generator import find_profile
from worker.contract import Directive, Member
from worker.gpu_wire import WireName


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One rank's view of a change.

    Attributes:
        directive: that asks for it.
        plan: the new plan.
        member: this rank's member row; its index is `transport_rank`.
        seat: in the new plan; None if this rank leaves.
        cuts: the common refinement of all plans in the change.
        held, needed: pieces of every transport rank, before and after.
        transfer: all that moves; nothing at the start of a job.
        bytes_needed: of this rank's new layout that it does not hold.
        kept: what this rank holds before and after, part by part.
    """

    directive: Directive
    plan: Plan
    transport_rank: int
    member: Member
    seat: Seat | None
    cuts: Cuts
    held: StateLayout
    needed: StateLayout
    transfer: Transfer
    bytes_needed: int
    kept: tuple[Slice, ...]

    @property
    def moves_state(self) -> bool:
        """Whether there is state to move; not at the start of a job."""
        return any(member.holds is not None for member in self.directive.members)

    @property
    def waits_for_boundary(self) -> bool:
        """Whether an old world trains, so that only a boundary tells the step of the switch."""
        return self.moves_state and self.directive.resume is None

    def pieces_after(self) -> tuple[Piece, ...]:
        """This rank's holdings after the change."""
        return self.needed[self.transport_rank]


def links_of(
    model: ModelShape, directive: Directive, wire: WireName, hosts: Sequence[str]
) -> Links | None:
    """Links by which senders are chosen: those that the planner prices; None: the usual ones.

    Args:
        model: that is trained.
        directive: of the change.
        wire: of all its ranks.
        hosts: of each member, by name.
    """
    if wire == "gloo":
        return None
    plans = [directive.plan, *directive.layouts.values()]
    seats = [seat for plan in plans for seat in RankMap.of(Plan.from_json(plan)).seats]
    types = {(seat.node, seat.gpu): seat.gpu_type for seat in seats}
    found, node_of, host_of = dict[int, str](), dict[int, str](), node_indices(hosts)
    for host, member in zip(host_of, directive.members, strict=True):
        found.setdefault(host, types.get((member.node, member.gpu), ""))
        node_of.setdefault(host, member.node)
    on_host, on_node = Counter(host_of), Counter(member.node for member in directive.members)
    spec = directive.training
    workload = spec.workload(model, "staged" if wire == "staged" else "nccl")
    order = sorted(found)
    shares = [on_host[host] / on_node[node_of[host]] for host in order]  # as `planner.plans.hosts`
    return profile_links(find_profile(workload), [found[host] for host in order], shares)


def plan_move(
    model: ModelShape, directive: Directive, pod: str, slot: int, wire: WireName
) -> Move | None:
    """The move of the rank at (pod, slot), or None if it is no member.

    Whatever the switch will need is worked out here, beside the training: messages and pieces too.
    NCCL takes two pods on one node for two hosts, so they do not hand state on to each other.

    Raises:
        StateLost: a piece has no holder among the members.
        LayoutMismatch: members and plans do not fit together.
    """
    found = [i for i, m in enumerate(directive.members) if (m.pod, m.slot) == (pod, slot)]
    if not found:
        return None
    me = found[0]
    member = directive.members[me]
    plan = Plan.from_json(directive.plan)
    layouts = {epoch: Plan.from_json(data) for epoch, data in directive.layouts.items()}
    cuts = state_refinement([plan, *layouts.values()])
    held = held_layout(model, directive.members, layouts, cuts)
    needed = needed_layout(model, plan, directive.members, cuts)
    hosts = [m.pod if wire == "nccl" else m.node for m in directive.members]
    moves_state = bool(layouts)
    links = links_of(model, directive, wire, hosts) if moves_state else None
    transfer = plan_transfer(held, needed if moves_state else held, hosts, links)
    missing = bytes_missing(held, needed)[me] if moves_state else 0
    seat = None if member.rank is None else RankMap.of(plan).seats[member.rank]
    transfer.messages(me)
    _ = transfer.digest
    kept = tuple(
        Slice(piece, piece.start, piece.stop, parts)
        for parts, mask in needed.masks.items()
        for piece in region_pieces(needed.regions, mask[me] & held.masks[parts][me])
    )
    return Move(
        directive=directive,
        plan=plan,
        transport_rank=me,
        member=member,
        seat=seat,
        cuts=cuts,
        held=held,
        needed=needed,
        transfer=transfer,
        bytes_needed=missing,
        kept=kept,
    )
