"""Checkpoints: any plan loads what any other saved, and a save that fails anywhere never counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.tensors import held_tensors, model_tensors
from planner.plans.pieces import Piece, contains, holders, shard
from planner.plans.ranks import RankMap
from tests.builders import MODEL, MOE, moe_plans, tiled
from tests.checkpoints import about, save, state
from tests.equal_tensors import are_equal
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt, best_of, complete, outdated
from worker.checkpoint.boxes import (
    EXPERT_TENSOR_BLOCKS,
    TENSOR_BLOCKS,
    numel,
    untiled,
    written,
)
from worker.checkpoint.load import Checkpoint, Newest, newest
from worker.checkpoint.manifest import InvalidManifest
from worker.checkpoint.save import NotYet, commit, save_part
from worker.checkpoint.vaults.vault import VaultFailed

CASES = 200
FIRST, NEXT = Attempt(epoch=1, step=10), Attempt(epoch=2, step=20)
PLAN = tiled("2x3 1x3", replicas=2, nodes=("a", "b"))
WHOLE = [Piece(t.name, 0, t.rows, 0, max(1, t.experts)) for t in model_tensors(MOE)]
MATRIX = next(box for box in WHOLE if box.expert_stop == 1 and box.stop > 1)
EXPERTS = next(box for box in WHOLE if box.expert_stop > 1)


def loaded(vault, model, rank_map):
    """Compare every shard of a plan with the saved state; the worst share of bytes read."""
    found = newest(vault)
    assert isinstance(found, Newest)
    truth, worst = state(model, found.manifest.step), 0.0
    for seat in rank_map.seats:
        checkpoint = Checkpoint(vault, found.attempt, found.manifest, model)
        needed = 0
        for tensor in held_tensors(model, seat.layers):
            box = shard(tensor, seat)
            needed += 12 * numel(tensor, box)
            parts = checkpoint.read(box)
            assert are_equal(parts, truth.read(box))
        worst = max(worst, checkpoint.bytes_read / needed)
    return worst


@settings(deadline=None, max_examples=15)
@given(one=moe_plans(), other=moe_plans())
def test_any_plan_loads_the_bits_that_any_other_saved(one, other):
    vault = MemoryVault()
    assert save(vault, FIRST, one, state(MOE, 10)) is not None
    loaded(vault, MOE, RankMap.of(other))


@settings(deadline=None, max_examples=30)
@given(plan=moe_plans())
def test_each_piece_is_written_once_by_a_holder(plan):
    pieces = written(MOE, plan)
    assert set(pieces) == set(range(len(RankMap.of(plan).seats)))
    assert max(Counter(piece for mine in pieces.values() for piece in mine).values()) == 1
    assert untiled(MOE, (piece for mine in pieces.values() for piece in mine)) is None
    seats = RankMap.of(plan).seats
    for rank, mine in pieces.items():
        held = {t.name: shard(t, seats[rank]) for t in held_tensors(MOE, seats[rank].layers)}
        for piece in mine:
            assert contains(held[piece.tensor], piece)


@settings(deadline=None, max_examples=30)
@given(plan=moe_plans())
def test_a_manifest_does_not_grow_with_the_ranks(plan):
    pieces = Counter(piece.tensor for piece in holders(MOE, plan))
    boxes = Counter(box.tensor for mine in written(MOE, plan).values() for box in mine)
    for tensor in model_tensors(MOE):
        most = EXPERT_TENSOR_BLOCKS if tensor.experts else TENSOR_BLOCKS
        assert boxes[tensor.name] <= max(pieces[tensor.name], most)


@st.composite
def cuts(draw):
    """Boxes that cover the rows and experts of a tensor once, cut anew in each half."""
    boxes = [draw(st.sampled_from([MATRIX, EXPERTS]))]
    for _ in range(draw(st.integers(0, 12))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        start, stop = draw(st.sampled_from([("start", "stop"), ("expert_start", "expert_stop")]))
        first, last = getattr(box, start), getattr(box, stop)
        at = draw(st.integers(first, last))
        halves = [box._replace(**{stop: at}), box._replace(**{start: at})]
        boxes += [box] if at in (first, last) else halves
    return boxes


@settings(deadline=None, max_examples=100)
@given(boxes=cuts(), data=st.data())
def test_boxes_tile_a_tensor_however_they_are_cut(boxes, data):
    whole = [box for box in WHOLE if box.tensor != boxes[0].tensor]
    assert untiled(MOE, whole + boxes) is None
    index = data.draw(st.integers(0, len(boxes) - 1))
    twice = [*boxes, boxes[index]]
    for wrong in (boxes[:index] + boxes[index + 1 :], twice):
        assert untiled(MOE, whole + wrong) == boxes[0].tensor


def test_replicas_share_the_writing():
    pieces = written(MODEL, tiled("1x6", replicas=4))
    tensors = {tensor.name: tensor for tensor in model_tensors(MODEL)}
    loads = [sum(numel(tensors[p.tensor], p) for p in mine) for mine in pieces.values()]
    assert sum(loads) == sum(tensor.numel for tensor in tensors.values())
    assert max(loads) - min(loads) <= max(tensor.numel for tensor in tensors.values())


@pytest.mark.parametrize(("saver", "loader"), [("1x6", "4x6"), ("4x6", "1x6"), ("2x3 1x3", "4x6")])
def test_a_rank_reads_little_more_than_it_holds(saver, loader):
    vault = MemoryVault()
    save(vault, FIRST, tiled(saver), state(MODEL, 10))
    assert loaded(vault, MODEL, RankMap.of(tiled(loader))) <= 1.3


FOUR, TILED = tiled("1x3", ep=4, etp=1, replicas=4), tiled("1x3", ep=1, etp=2, replicas=2)


@pytest.mark.parametrize(("saver", "loader"), [(FOUR, TILED), (TILED, FOUR)])
def test_a_rank_reads_little_more_than_it_holds_of_experts(saver, loader):
    vault = MemoryVault()
    save(vault, FIRST, saver, state(MOE, 10))
    assert loaded(vault, MOE, RankMap.of(loader)) <= 1.3


class Fails:
    """Let the n-th call or chunk of a vault fail; `after_commit` counts the last of them."""

    def __init__(self, at: int) -> None:
        self.left, self.after_commit = at, 0

    def __call__(self, operation: str, name: str) -> None:
        self.left -= 1
        self.after_commit = 0 if operation == "commit" else self.after_commit + 1
        if self.left == 0:
            raise VaultFailed(f"{operation} of {name}", "full")


def calls_of_a_save():
    vault, fails = MemoryVault(), Fails(0)
    vault.fails = fails
    save(vault, NEXT, PLAN, state(MODEL, 20))
    return -fails.left, fails.after_commit


def test_a_save_that_fails_at_any_call_never_counts():
    calls, after_commit = calls_of_a_save()
    choose = random.Random(7)
    places = choose.sample(range(1, calls + 1), min(CASES, calls))
    old = MemoryVault()
    save(old, FIRST, PLAN, state(MODEL, 10))
    for number, place in enumerate(places):
        vault = MemoryVault()
        vault.objects = dict(old.objects)
        vault.fails = Fails(place)
        with pytest.raises(VaultFailed):
            save(vault, NEXT, PLAN, state(MODEL, 20))
        vault.fails = lambda *_: None
        found = newest(vault)
        assert found.attempt == (NEXT if place > calls - after_commit else FIRST), place
        if number % 20:
            continue
        save(vault, Attempt(epoch=3, step=30), PLAN, state(MODEL, 30))
        for name in outdated(vault.names(), last=1):
            vault.remove(name)
        assert {name.split("/")[0] for name in vault.names()} == {"step-30.e3"}


def test_a_changed_byte_of_a_file_is_never_given_out():
    vault = MemoryVault()
    save(vault, FIRST, PLAN, state(MODEL, 10))
    whole, choose = dict(vault.objects), random.Random(3)
    files = sorted(name for name in whole if name.endswith(".safetensors"))
    for _ in range(20):
        name = choose.choice(files)
        header = 8 + int.from_bytes(whole[name][:8], "little")
        content = bytearray(whole[name])
        content[choose.randrange(header, len(content))] ^= 1 << choose.randrange(8)
        vault.objects = whole | {name: bytes(content)}
        with pytest.raises(InvalidManifest) as refusal:
            loaded(vault, MODEL, RankMap.of(tiled("1x6")))
        assert refusal.value.code == "damaged"


def test_a_damaged_manifest_is_refused_and_the_next_older_one_taken():
    vault = MemoryVault()
    save(vault, FIRST, PLAN, state(MODEL, 10))
    save(vault, NEXT, PLAN, state(MODEL, 20))
    vault.objects[NEXT.manifest] = vault.objects[NEXT.manifest][:-1]
    found = newest(vault)
    assert found.attempt == FIRST
    assert [one.attempt for one in found.refused] == [NEXT]


def test_a_manifest_of_another_job_is_refused_in_its_words():
    vault = MemoryVault()
    save(vault, FIRST, PLAN, state(MODEL, 10))
    (refused,) = newest(vault, lambda manifest: "it is of another model")
    assert refused == (FIRST, "it is of another model")
    assert newest(MemoryVault()) == ()


def test_a_commit_waits_for_every_part_and_takes_no_foreign_one():
    vault, pieces = MemoryVault(), written(MODEL, PLAN)
    held = state(MODEL, 10)
    for rank in list(pieces)[1:]:
        save_part(vault, FIRST, rank, MODEL, pieces[rank], held.chunks)
    with pytest.raises(NotYet):
        commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data")
    vault.objects[FIRST.name("part-0.json")] = b'{"rank": 0'
    with pytest.raises(InvalidManifest):
        commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data")
    save_part(vault, FIRST, 0, MODEL, pieces[0][1:], held.chunks)  # a box is missing
    with pytest.raises(InvalidManifest):
        commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data")
    save_part(vault, FIRST, 0, MODEL, (*pieces[0], pieces[1][0]), held.chunks)  # a box twice
    with pytest.raises(InvalidManifest):
        commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data")
    save_part(vault, FIRST, 0, MODEL, pieces[0], held.chunks)
    assert commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data") is not None
    assert commit(vault, FIRST, len(pieces), MODEL, about(MODEL, 10), "data") is None


@settings(max_examples=100)
@given(
    attempts=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50), st.booleans()), max_size=12),
    last=st.integers(1, 3),
)
def test_retention_keeps_the_newest_complete_and_what_is_under_way(attempts, last):
    names = []
    for epoch, step, is_whole in attempts:
        attempt = Attempt(epoch, step)
        names += [attempt.name("part-0.json"), *([attempt.manifest] if is_whole else [])]
    gone = outdated(names, last)
    left = set(names) - set(gone)
    whole = sorted({Attempt(e, s) for e, s, w in attempts if w})
    assert {a for a in whole if a.manifest in left} == set(whole[-last:])
    for attempt in {Attempt(e, s) for e, s, _ in attempts}:
        is_newer = not whole or attempt > whole[-1]
        assert (attempt.name("part-0.json") in left) == (is_newer or attempt in whole[-last:])
    manifests = [name for name in gone if name.endswith("manifest.json")]
    for name in manifests:
        folder = name.split("/")[0]
        assert next(one for one in gone if one.startswith(f"{folder}/")) == name


@settings(max_examples=100)
@given(
    rounds=st.lists(
        st.tuples(
            st.tuples(st.integers(1, 5), st.integers(0, 50)),
            st.none() | st.sampled_from((0.5, 1.0, 2.0)),  # some are equal
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda one: one[0],
    )
)
def test_retention_never_removes_the_best_checkpoint_that_it_has_seen(rounds):
    losses, there = {}, set()
    for (epoch, step), loss, last in rounds:
        attempt = Attempt(epoch, step)
        losses[attempt] = loss
        there |= {attempt.manifest, attempt.name("part-0.json")}
        newest = complete(sorted(there))[:last]
        there -= set(outdated(sorted(there), last, losses))
        whole = complete(sorted(there))
        assert whole[: len(newest)] == newest
        known = [(-value, one) for one, value in losses.items() if value is not None]
        best = max(known)[1] if known else None
        assert best is None or best in whole
        assert len(whole) <= last + (best not in whole[:last] and best is not None)


def test_without_losses_none_is_the_best():
    assert best_of({}) is None
    assert best_of({FIRST: None}) is None
