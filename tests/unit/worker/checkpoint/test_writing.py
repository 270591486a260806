"""checkpoint/writing.py: how long one save takes, and how long it is waited for."""

from __future__ import annotations

import threading
import time

from tests.builders import MOE
from tests.checkpoints import State, about
from tests.fakes.vault import MemoryVault
from tests.unit.worker.checkpoint.test_saver import LIMIT_S, Held, outcomes, savers
from worker.checkpoint import saver as saver_module
from worker.checkpoint import writing


def test_a_paced_save_takes_its_time_until_somebody_waits_for_it(monkeypatch):
    monkeypatch.setattr(writing, "PACED_BYTES_S", 1.0)
    monkeypatch.setattr(writing, "PACED_S", 3600.0)
    vault, held = MemoryVault(), State(MOE, 10)
    both = savers(vault)
    for saver in both:
        assert saver.begin(about(MOE, 10), held.read, is_paced=True)
    assert not any(saver.wait(0.2) for saver in both)
    for saver in both:
        saver.hurry()
    assert [outcomes(saver) for saver in both] == [[(10, "saved")]] * 2


def test_a_paced_save_can_be_given_up(monkeypatch):
    monkeypatch.setattr(writing, "PACED_BYTES_S", 1.0)
    monkeypatch.setattr(writing, "PACED_S", 3600.0)
    saver = savers(MemoryVault())[0]
    saver.begin(about(MOE, 10), State(MOE, 10).read, is_paced=True)
    saver.give_up()
    assert outcomes(saver) == [(10, "given up")]


def until_silent(saver):
    """Seconds until nobody waits for the save of a rank any more."""
    since_s = time.monotonic()
    while not saver.end_if_silent(since_s):
        assert time.monotonic() - since_s < LIMIT_S
        time.sleep(0.01)
    return time.monotonic() - since_s


def test_a_save_that_goes_on_being_written_is_waited_for_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(saver_module, "SILENT_S", 1.0)
    vault, held = MemoryVault(), State(MOE, 10)
    vault.fails = lambda operation, name: time.sleep(0.01 if operation == "chunk" else 0.0)
    both = savers(vault)
    for saver in both:
        saver.begin(about(MOE, 10), held.read)
    assert max(map(until_silent, both)) > 2 * 1.0
    assert [outcomes(saver) for saver in both] == [[(10, "saved")]] * 2


def test_a_save_of_which_nothing_is_written_is_told_at_once_though_the_store_holds_it(monkeypatch):
    monkeypatch.setattr(saver_module, "SILENT_S", 0.2)
    vault, held = MemoryVault(), State(MOE, 10)
    hold = vault.fails = Held()
    saver = savers(vault)[0]
    saver.begin(about(MOE, 10), held.read)
    assert until_silent(saver) >= 0.2
    (record,) = saver.take_records()
    assert saver.is_running
    assert (record.outcome, record.error) == ("given up", "nothing was written within 0 s")
    hold.free.set()
    assert outcomes(saver) == []  # it is told once


def test_parts_of_other_ranks_have_the_time_of_the_largest_file_beside_it(monkeypatch):
    monkeypatch.setattr(saver_module, "SILENT_S", 0.1)
    vault, held = MemoryVault(), State(MOE, 10)
    first, other = savers(vault, file_bytes=int(0.5 * saver_module.LEAST_BYTES_S))
    first.begin(about(MOE, 10), held.read)
    while first.is_writing:
        time.sleep(0.01)
    assert until_silent(first) >= 0.5
    assert first.wait(LIMIT_S)
    (record,) = first.take_records()
    assert record.outcome == "given up"
    assert record.error.startswith("nothing was written within 1 s; step-10.e1 lacks the parts of")
    first.begin(about(MOE, 20), held.read)
    other.begin(about(MOE, 20), held.read)
    assert [outcomes(first), outcomes(other)] == [[(20, "saved")]] * 2


def test_a_file_of_another_rank_makes_rank_0_wait_on(monkeypatch):
    monkeypatch.setattr(saver_module, "SILENT_S", 1.0)
    monkeypatch.setattr(saver_module, "LOOK_AGAIN_MOST_S", 0.1)
    vault = MemoryVault()
    first = savers(vault)[0]
    first.begin(about(MOE, 10), State(MOE, 10).read)
    for file in range(15):
        vault.put(f"step-10.e1/rank-1-{file}.safetensors", [b""], 0)
        assert not first.end_if_silent(0.0)
        time.sleep(0.1)
    assert until_silent(first) >= 0.5
    assert outcomes(first) == [(10, "given up")]


def test_a_checkpoint_is_saved_while_old_ones_are_still_removed(monkeypatch):
    monkeypatch.setattr(saver_module, "SILENT_S", 0.1)
    vault, held, free = MemoryVault(), State(MOE, 10), threading.Event()
    vault.fails = lambda operation, name: operation == "tidy" and free.wait(LIMIT_S)
    first, other = savers(vault)
    other.begin(about(MOE, 10), held.read)
    assert outcomes(other) == [(10, "saved")]
    first.begin(about(MOE, 10), held.read)
    until_s = time.monotonic() + LIMIT_S
    while first.saved_step is None and time.monotonic() < until_s:
        time.sleep(0.01)
    assert until_silent(first) >= 0.1
    assert (first.saved_step, first.is_running) == (10, True)
    free.set()
    assert outcomes(first) == [(10, "saved")]
