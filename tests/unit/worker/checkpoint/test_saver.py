"""checkpoint/saver.py: an update waits for a copy at most, never for the store."""

from __future__ import annotations

import threading
import time

import pytest

from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from tests.builders import MOE, tiled
from tests.checkpoints import State, about
from tests.fakes.vault import MemoryVault
from worker.checkpoint import saver as saver_module
from worker.checkpoint.attempts import complete
from worker.checkpoint.boxes import written
from worker.checkpoint.clearing import Retention
from worker.checkpoint.load import Checkpoint, newest
from worker.checkpoint.saver import Saver
from worker.checkpoint.vaults.vault import VaultFailed
from worker.state.still import StillState

PLAN = tiled("2x3")
LIMIT_S = 30.0


def savers(vault, keep_last=2, epoch=1, keep_best=False, free=1 << 30, file_bytes=0):
    pieces = written(MOE, PLAN)
    return [
        Saver(
            open_=lambda: vault,
            model=MOE,
            epoch=epoch,
            rank=rank,
            ranks=len(pieces),
            pieces=mine,
            kept=Retention(keep_last, keep_best),
            data_digest=lambda: "data",
            still=StillState(),
            free_bytes=lambda: free,
            file_bytes=file_bytes,
        )
        for rank, mine in pieces.items()
    ]


def update(held, savers):
    """The next update, as an engine does it."""
    for tensor, parts in held.parts.items():
        for saver in savers:
            saver._still.before_update(tensor)
        for part in parts:
            part.add_(1.0)


def outcomes(saver):
    assert saver.wait(LIMIT_S)
    return [(record.step, record.outcome) for record in saver.take_records()]


class Held:
    """A vault whose puts wait until they are let go."""

    def __init__(self):
        self.free = threading.Event()

    def __call__(self, operation, name):
        if operation == "put":
            assert self.free.wait(LIMIT_S)


def test_what_is_saved_is_the_state_of_the_boundary_though_training_goes_on():
    vault, held = MemoryVault(), State(MOE, 10)
    hold = vault.fails = Held()
    both = savers(vault)
    for saver in both:
        assert saver.begin(about(MOE, 10), held.read)
    update(held, both)
    hold.free.set()
    assert [outcomes(saver) for saver in both] == [[(10, "saved")]] * 2
    found, truth = newest(vault), State(MOE, 10)
    checkpoint = Checkpoint(vault, found.attempt, found.manifest, MOE)
    for tensor in model_tensors(MOE):
        box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        assert all(a.equal(b) for a, b in zip(checkpoint.read(box), truth.read(box), strict=True))


def test_a_boundary_does_not_wait_for_a_store_that_is_stalled():
    vault, held = MemoryVault(), State(MOE, 10)
    hold = vault.fails = Held()
    saver = savers(vault)[0]
    began_s = time.monotonic()
    assert saver.begin(about(MOE, 10), held.read)
    assert not saver.begin(about(MOE, 20), held.read)
    assert time.monotonic() - began_s < 5
    assert [(r.step, r.outcome) for r in saver.take_records()] == [(20, "late")]
    saver.give_up()
    hold.free.set()
    assert outcomes(saver) == [(10, "given up")]
    assert complete(vault.names()) == ()


def test_a_store_that_fails_ends_the_save_and_the_next_one_may_succeed():
    vault, held = MemoryVault(), State(MOE, 10)

    def full(operation, name):
        if operation == "chunk":
            raise VaultFailed("the store is full", "full")

    vault.fails = full
    both = savers(vault)
    for saver in both:
        saver.begin(about(MOE, 10), held.read)
    (record,) = _ended(both[0])
    assert (record.outcome, record.error) == ("failed", "the store is full")
    assert outcomes(both[1]) == [(10, "failed")]
    vault.fails = lambda *_: None
    for saver in both:
        assert saver.begin(about(MOE, 20), held.read)
    assert [outcomes(saver) for saver in both] == [[(20, "saved")]] * 2


def _ended(saver):
    assert saver.wait(LIMIT_S)
    return saver.take_records()


def test_a_save_that_waits_for_a_lost_rank_gives_way_to_the_next_one():
    vault, held = MemoryVault(), State(MOE, 10)
    first, other = savers(vault)
    first.begin(about(MOE, 10), held.read)  # the other rank never saves this step
    until_s = time.monotonic() + LIMIT_S
    while "step-10.e1/part-0.json" not in vault.names() and time.monotonic() < until_s:
        time.sleep(0.01)
    while not first.begin(about(MOE, 20), held.read):
        time.sleep(0.01)
    other.begin(about(MOE, 20), held.read)
    assert outcomes(other) == [(20, "saved")]
    assert first.wait(LIMIT_S)
    assert newest(vault).attempt.step == 20


def test_a_save_whose_parts_are_all_there_is_whole_though_the_next_one_begins(monkeypatch):
    monkeypatch.setattr(saver_module, "LOOK_AGAIN_S", LIMIT_S)
    vault, held, looks = MemoryVault(), State(MOE, 10), threading.Semaphore(0)
    vault.fails = lambda operation, name: looks.release() if operation == "names" else None
    first, other = savers(vault)
    first.begin(about(MOE, 10), held.read)
    assert looks.acquire(timeout=LIMIT_S)
    until_s = time.monotonic() + LIMIT_S
    while first._save._lacking is None and time.monotonic() < until_s:  # looks again much later
        time.sleep(0.01)
    other.begin(about(MOE, 10), held.read)
    assert outcomes(other) == [(10, "saved")]
    assert first.begin(about(MOE, 20), held.read)
    until_s = time.monotonic() + LIMIT_S / 2
    while not first.has_records and time.monotonic() < until_s:
        time.sleep(0.01)
    assert [(record.step, record.outcome) for record in first.take_records()] == [(10, "saved")]
    first.give_up()


def test_old_checkpoints_go_once_a_new_one_is_whole():
    vault, held = MemoryVault(), State(MOE, 10)
    both = savers(vault, keep_last=2)
    for step in (10, 20, 30):
        for saver in both:
            saver.begin(about(MOE, step), held.read)
        assert all(saver.wait(LIMIT_S) for saver in both)
    assert [attempt.step for attempt in complete(vault.names())] == [30, 20]
    assert not [name for name in vault.names() if name.startswith("step-10.")]


def test_the_best_checkpoint_stays_beside_the_newest_and_is_told():
    vault, held = MemoryVault(), State(MOE, 10)
    both = savers(vault, keep_last=1, keep_best=True)
    told = []
    for step, loss in ((10, None), (20, 2.0), (30, 1.0), (40, 1.5), (50, 1.0), (60, None)):
        known = about(MOE, step).model_copy(update={"held_out_loss": loss})
        for saver in both:
            assert saver.begin(known, held.read)
        (record,) = _ended(both[0])
        _ended(both[1])
        assert record.held_out_loss == loss
        told.append((record.best.step, record.best.held_out_loss) if record.best else None)
    assert told == [None, (20, 2.0), (30, 1.0), (30, 1.0), (50, 1.0), (50, 1.0)]
    assert [attempt.step for attempt in complete(vault.names())] == [60, 50]
    assert [both[0].may_be_best(loss) for loss in (0.5, 1.0, float("nan"))] == [True, False, False]
    assert both[1].may_be_best(1.0)  # it has seen no manifest


def test_losses_of_earlier_epochs_count_and_a_damaged_manifest_has_none():
    vault, held = MemoryVault(), State(MOE, 10)
    for epoch, loss, best in ((1, 0.5, 1), (2, 1.0, 1), (3, 2.0, 2)):
        if epoch == 3:
            vault.objects["step-10.e1/manifest.json"] += b" "
        both = savers(vault, keep_last=1, epoch=epoch, keep_best=True)
        for saver in both:
            saver.begin(about(MOE, 10).model_copy(update={"held_out_loss": loss}), held.read)
        (record,) = _ended(both[0])
        _ended(both[1])
        assert record.best.epoch == best
    assert [str(attempt) for attempt in complete(vault.names())] == ["step-10.e3", "step-10.e2"]


def test_a_store_that_fails_while_the_best_is_looked_for_removes_nothing():
    vault, held = MemoryVault(), State(MOE, 10)
    for epoch in (1, 2):
        both = savers(vault, keep_last=1, epoch=epoch, keep_best=True)
        for saver in both:
            saver.begin(about(MOE, 10).model_copy(update={"held_out_loss": 1.0}), held.read)
        assert all(saver.wait(LIMIT_S) for saver in both)

        def unread(operation, name):
            if operation == "read" and name == "step-10.e1/manifest.json":
                raise VaultFailed("the store does not answer", "unanswered")

        vault.fails = unread
    assert len(complete(vault.names())) == 2


def test_a_record_has_the_bytes_and_the_time_that_training_waited():
    vault, held = MemoryVault(), State(MOE, 10)
    both = savers(vault)
    for saver in both:
        saver.begin(about(MOE, 10), held.read)
    records = [record for saver in both for record in _ended(saver)]
    assert sum(r.num_bytes for r in records) == sum(
        len(content) for name, content in vault.objects.items() if name.endswith(".safetensors")
    )
    assert all(0 <= record.copy_s <= record.seconds for record in records)


def test_without_memory_for_a_copy_the_next_update_drops_the_save():
    vault, held = MemoryVault(), State(MOE, 10)
    hold = vault.fails = Held()
    saver = savers(vault, free=0)[0]
    assert saver.begin(about(MOE, 10), held.read, is_paced=True)
    update(held, [saver])
    hold.free.set()
    (record,) = _ended(saver)
    assert record.outcome == "failed"
    assert "no memory for a copy" in record.error


def test_without_memory_for_a_copy_a_save_is_written_from_the_live_state():
    vault, held = MemoryVault(), State(MOE, 10)
    both = savers(vault, free=0)
    for saver in both:
        assert saver.begin(about(MOE, 10), held.read, is_paced=True)
    assert [outcomes(saver) for saver in both] == [[(10, "saved")]] * 2
    assert {saver.staged_bytes for saver in both} == {0}


def test_a_save_that_is_given_up_costs_the_next_update_nothing():
    vault, held = MemoryVault(), State(MOE, 10)
    hold = vault.fails = Held()
    saver = savers(vault)[0]
    assert saver.begin(about(MOE, 10), held.read)
    saver.give_up()
    update(held, [saver])
    assert saver.staged_bytes == saver._still.staging_bytes == 0
    hold.free.set()
    assert outcomes(saver) == [(10, "given up")]


@pytest.mark.parametrize("calls", [0, 1])
def test_a_saver_without_a_save_has_nothing_to_wait_for(calls):
    saver = savers(MemoryVault())[0]
    for _ in range(calls):
        saver.give_up()
    assert saver.wait(0)
    assert saver.take_records() == ()


@pytest.mark.parametrize("operation", ["names", "remove"])
def test_a_checkpoint_is_saved_though_old_ones_are_not_removed(operation, caplog):
    vault, held = MemoryVault(), State(MOE, 10)

    def refuse(called, name):
        if called == operation and name in ("", "step-10.e1/manifest.json"):
            raise VaultFailed("the store removes nothing", "refused")

    both = savers(vault, keep_last=1)
    for step in (10, 20):
        vault.fails = refuse if step == 20 else lambda *_: None
        for saver in both:
            saver.begin(about(MOE, step), held.read)
        assert [outcomes(saver) for saver in both] == [[(step, "saved")]] * 2
    assert complete([*vault.objects])[0].step == 20
    assert "old checkpoints are not removed: the store removes nothing" in caplog.text


@pytest.mark.parametrize("refuses", [False, True])
def test_what_broken_writes_left_goes_after_a_save_which_is_whole_all_the_same(refuses, caplog):
    vault, held, calls = MemoryVault(), State(MOE, 10), []

    def note(operation, name):
        calls.append((operation, name))
        if operation == "tidy" and refuses:
            raise VaultFailed("the store does not list uploads", "refused")

    vault.fails = note
    both = savers(vault)
    for saver in both:
        saver.begin(about(MOE, 10), held.read)
    assert [outcomes(saver) for saver in both] == [[(10, "saved")]] * 2
    assert [call for call in calls if call[0] in ("commit", "tidy")] == [
        ("commit", "step-10.e1/manifest.json"),
        ("tidy", ""),
    ]
    assert ("does not list uploads" in caplog.text) == refuses
