"""Laws of a transfer: only what is missing moves, once over each network card, and nobody waits."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.migration.loads import loads_of, makespan_s
from migration.classes import bytes_missing
from migration.errors import StateLost
from migration.layout import StateLayout
from migration.transfer import plan_transfer
from planner.model.tensors import model_tensors
from planner.plans.movement import bytes_to_move
from planner.plans.pieces import region_pieces
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.plans.state_rule import PARTS
from tests.builders import MOE, OWNERS, moe_plans
from tests.laws.migration.changes import MODEL, Change, any_changes, changes, plans


def rows_of(box):
    """{(tensor, expert, row)} of a piece or slice."""
    experts = range(box.expert_start, box.expert_stop)
    return {(box.tensor, e, row) for e in experts for row in range(box.start, box.stop)}


def rows_held(layout, rank):
    return set().union(*map(rows_of, layout[rank]))


def rows_in(message):
    found = [rows_of(part.box) for part in message.slices]
    assert sum(map(len, found)) == len(set().union(*found)), "a message brings a row once"
    return set().union(*found)


def messages_of(change: Change, transfer=None):
    """The messages of every rank."""
    transfer = transfer or change.transfer()
    return [transfer.messages(rank) for rank in range(len(change.members))]


@given(plans())
def test_nothing_moves_between_equal_plans(plan: Plan):
    transfer = Change(plan, plan, frozenset()).transfer()
    assert (transfer.runs, transfer.num_bytes, makespan_s(transfer)) == ((), 0, 0.0)


@given(any_changes())
def test_every_rank_gets_each_missing_row_once_and_nothing_else(change: Change):
    missing = bytes_missing(change.held, change.needed)
    assert change.transfer().num_bytes == sum(missing)
    for rank, messages in enumerate(messages_of(change)):
        incoming = [message for message in messages if message.receiver == rank]
        rows = [rows_in(message) for message in incoming]
        lacks = rows_held(change.needed, rank) - rows_held(change.held, rank)
        assert sum(map(len, rows)) == len(lacks)
        assert set().union(*rows) == lacks
        assert sum(message.num_bytes for message in incoming) == missing[rank]


@given(any_changes())
def test_bytes_to_move_of_the_planner_are_those_of_the_transfer(change: Change):
    assert change.transfer().num_bytes == bytes_to_move(change.model, change.old, change.new)


@given(any_changes())
def test_a_rank_sends_what_it_holds_or_has_received(change: Change):
    for rank, messages in enumerate(messages_of(change)):
        came = {message.turn: rows_in(message) for message in messages if message.receiver == rank}
        for message in messages:
            if message.sender == rank:
                held = (
                    rows_held(change.held, rank) if message.after is None else came[message.after]
                )
                assert rows_in(message) <= held
                assert message.after is None or message.after < message.turn


@given(any_changes())
def test_a_slice_enters_a_node_once_and_only_if_nobody_there_holds_it(change: Change):
    node = change.node_of
    entered: dict[str, list] = {name: [] for name in node}
    for rank, messages in enumerate(messages_of(change)):
        for message in messages:
            if message.receiver == rank and node[message.sender] != node[rank]:
                entered[node[rank]] += rows_in(message)
    for name, rows in entered.items():
        ranks = [rank for rank, of in enumerate(node) if of == name]
        there = set().union(*(rows_held(change.held, rank) for rank in ranks))
        needed = set().union(*(rows_held(change.needed, rank) for rank in ranks))
        assert Counter(rows) == Counter(needed - there)


@given(any_changes())
def test_both_ends_of_a_pair_see_the_same_messages_in_the_same_order(change: Change):
    pairs: dict[tuple[int, int], list] = {}
    for rank, messages in enumerate(messages_of(change)):
        assert list(messages) == sorted(messages, key=lambda message: message.turn)
        for message in messages:
            assert rank in (message.sender, message.receiver)
            row = pairs.setdefault((message.sender, message.receiver), [[], []])
            row[rank == message.receiver].append((message.sequence, message.slices, message.turn))
    for sent, received in pairs.values():
        assert sent == received
        assert [sequence for sequence, _, _ in sent] == list(range(len(sent)))


@given(any_changes(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_no_rank_waits_for_ever_whatever_finishes_first(change: Change, window, random):
    """The rule of `exchange_state`, with messages that complete in any order that is possible."""
    todo = [deque(messages) for messages in messages_of(change)]
    underway: list[deque] = [deque() for _ in todo]
    posted: Counter = Counter()
    complete, arrived = set(), [set() for _ in todo]

    def steps():
        """Everything that may happen next."""
        for rank, messages in enumerate(todo):
            if underway[rank] and underway[rank][0].turn in complete:
                yield "finish", rank
            if messages and len(underway[rank]) < window:
                first = messages[0]
                if first.sender != rank or first.after is None or first.after in arrived[rank]:
                    yield "post", rank
        yield from (("complete", turn) for turn, ends in posted.items() if ends == 2)

    while any(todo) or any(underway):
        what, who = random.choice(sorted(steps()))  # an empty list: all wait for ever
        if what == "complete":
            complete.add(who)
            del posted[who]
        elif what == "post":
            message = todo[who].popleft()
            underway[who].append(message)
            posted[message.turn] += 1
        else:
            message = underway[who].popleft()
            if message.receiver == who:
                arrived[who].add(message.turn)


@given(changes(losses=True))
def test_state_is_lost_exactly_when_a_needed_piece_has_no_holder(change: Change):
    held = set().union(*(rows_held(change.held, rank) for rank in range(len(change.members))))
    needed = set().union(*(rows_held(change.needed, rank) for rank in range(len(change.members))))
    if needed <= held:
        assert change.transfer().num_bytes == sum(bytes_missing(change.held, change.needed))
        return
    with pytest.raises(StateLost, match="no live rank holds"):
        change.transfer()


@given(changes())
def test_parts_with_other_holders_move_apart_from_the_weights(change: Change):
    """As with ZeRO 1: moments live on the first holder alone, and the others need none."""
    whole = change.held.masks[PARTS]
    first = whole & (whole.cumsum(axis=0) == 1)
    needed = change.needed.masks[PARTS]
    moments = needed & (needed.cumsum(axis=0) == 1)
    held, wanted = (
        StateLayout(change.held.regions, {PARTS[:1]: weight, PARTS[1:]: moment})
        for weight, moment in ((whole, first), (needed, moments))
    )
    transfer = plan_transfer(held, wanted, change.node_of, message_bytes=256, grain_bytes=32)
    assert transfer.num_bytes == sum(bytes_missing(held, wanted))
    for rank in range(len(change.members)):
        for message in transfer.messages(rank):
            assert all(part.parts in (PARTS[:1], PARTS[1:]) for part in message.slices)


def seats_of(change: Change, plan: Plan):
    """The seat of each member in a plan, if it has one there."""
    seats = {(seat.node, seat.gpu): seat for seat in RankMap.of(plan).seats}
    places = [(member.node, member.gpu) for member in change.members]
    return [[seats[place]] if place in seats else [] for place in places]


@given(moe_plans(), moe_plans())
def test_owners_of_a_rule_get_their_parts_and_nobody_else_does(old, new):
    plain = Change(old, new, frozenset(), MOE)
    regions = plain.held.regions
    held, needed = (
        StateLayout(regions, OWNERS.masks(regions, seats_of(plain, plan))) for plan in (old, new)
    )
    transfer = plan_transfer(held, needed, plain.node_of, message_bytes=256, grain_bytes=32)
    for rank, messages in enumerate(messages_of(plain, transfer)):
        for parts, mask in needed.masks.items():
            lacks = region_pieces(needed.regions, mask[rank] & ~held.masks[parts][rank])
            rows = [
                row
                for message in messages
                if message.receiver == rank
                for part in message.slices
                if part.parts == parts
                for row in rows_of(part.box)
            ]
            assert Counter(rows) == Counter(row for piece in lacks for row in rows_of(piece))


@given(any_changes())
def test_the_makespan_is_that_of_the_busiest_port(change: Change):
    transfer = change.transfer()
    loads = loads_of(transfer, transfer.links)
    incoming = [0] * len(change.members)
    for rank, messages in enumerate(messages_of(change)):
        incoming[rank] = sum(m.num_bytes for m in messages if m.receiver == rank)
    for rank, size in enumerate(incoming):
        assert loads.port_in[rank] == pytest.approx(size / transfer.links.port_bytes_per_s)
    assert makespan_s(transfer) >= max(loads.port_in)


@given(any_changes())
def test_every_rank_works_out_the_same_digest(change: Change):
    again = Change(change.old, change.new, change.dead, change.model)
    assert again.transfer().digest == change.transfer().digest
    if change.transfer().runs:
        assert change.transfer(message_bytes=300).digest != change.transfer().digest


def test_the_model_of_the_laws_has_every_kind_of_tensor():
    assert {tensor.dim for tensor in model_tensors(MODEL)} == {None, 0, 1}
