"""Checkpoints on a store that fails, lies and stalls: each history of saves keeps the laws.

The laws are those of `History`.  `HEDDLE_SAVE_HISTORIES` draws more of them.
"""

from __future__ import annotations

import os

import pytest

from tests.builders import MODEL, tiled
from tests.checkpoints import about, save, state
from tests.fakes.faulty_vault import Fault, FaultyVault
from tests.fakes.vault import MemoryVault
from tests.laws.worker.save_histories import DENSE, History
from worker.checkpoint.attempts import Attempt, outdated
from worker.checkpoint.boxes import written
from worker.checkpoint.load import newest
from worker.checkpoint.manifest import InvalidManifest, Manifest
from worker.checkpoint.save import commit, save_part
from worker.checkpoint.vaults.vault import VaultFailed

CASES = int(os.environ.get("HEDDLE_SAVE_HISTORIES", "200"))
TURNS = 8
OPERATIONS = ("put", "commit", "read", "names", "remove")
OLD, NEW = Attempt(epoch=1, step=10), Attempt(epoch=2, step=10)
PLAN = tiled("1x3 1x3")


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_checkpoint_is_the_state_of_one_step_whatever_fails(turn):
    fired = set()
    for seed in range(turn, CASES, TURNS):
        history = History(seed)
        try:
            history.run()
        except BaseException as failure:
            failure.add_note(f"in the history of seed {seed}")
            raise
        fired |= history.fired
    assert {operation for _, operation in fired} == set(OPERATIONS)
    assert {kind for kind, _ in fired} >= {"full", "unanswered", "dies", "dies after", "stalls"}
    assert {("lies", "read"), ("lies", "names"), ("stalls", "commit")} <= fired


def test_a_manifest_cut_or_changed_at_any_byte_is_refused():
    vault = MemoryVault()
    save(vault, OLD, tiled("1x2"), state(DENSE, 10))
    content = vault.objects[OLD.manifest]
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        for other in (content[:place], bytes(changed)):
            with pytest.raises(InvalidManifest) as refusal:
                Manifest.from_bytes(other)
            assert refusal.value.code == "damaged"


def test_a_record_with_another_digest_commits_nothing():
    vault, pieces = MemoryVault(), written(MODEL, PLAN)
    for rank, mine in pieces.items():
        save_part(vault, OLD, rank, MODEL, mine, state(MODEL, 10).chunks)
    whole = dict(vault.objects)
    record = whole[OLD.name("part-1.json")]
    place = record.rindex(b'"]') - 1  # a box ends with its digest
    other = b"0" if record[place : place + 1] != b"0" else b"1"
    vault.objects[OLD.name("part-1.json")] = record[:place] + other + record[place + 1 :]
    with pytest.raises(InvalidManifest) as refusal:
        commit(vault, OLD, len(pieces), MODEL, about(MODEL, 10), "data")
    assert refusal.value.code == "damaged"
    assert newest(vault) == ()


def retain(vault):
    for name in outdated(vault.names(), last=1):
        vault.remove(name)


def test_a_rank_that_stalls_before_its_commit_finds_its_files_gone():
    vault, pieces = MemoryVault(), written(MODEL, PLAN)
    for rank, mine in pieces.items():
        save_part(vault, OLD, rank, MODEL, mine, state(MODEL, 10).chunks)

    def meanwhile():
        save(vault, NEW, PLAN, state(MODEL, 20))
        retain(vault)

    stalled = FaultyVault(vault, Fault("stalls", "commit", 0), meanwhile)
    with pytest.raises(VaultFailed) as refusal:
        commit(stalled, OLD, len(pieces), MODEL, about(MODEL, 10), "data")
    assert refusal.value.code == "missing"
    assert {name.split("/")[0] for name in vault.names()} == {str(NEW)}


def test_a_late_commit_amid_its_removal_leaves_no_manifest_without_files():
    vault, pieces = MemoryVault(), written(MODEL, PLAN)
    for rank, mine in pieces.items():
        save_part(vault, OLD, rank, MODEL, mine, state(MODEL, 10).chunks)
    save(vault, NEW, PLAN, state(MODEL, 20))

    def meanwhile():
        assert commit(vault, OLD, len(pieces), MODEL, about(MODEL, 10), "data") is not None

    for number in (0, 1):  # before the removal of a manifest that is not there yet, and after it
        removing = FaultyVault(vault, Fault("stalls", "remove", number), meanwhile)
        before = dict(vault.objects)
        retain(removing)
        assert removing.fired
        assert {name.split("/")[0] for name in vault.names()} == {str(NEW)}
        vault.objects = before


def test_no_manifest_is_committed_while_a_file_is_gone():
    vault, pieces, seen = MemoryVault(), written(MODEL, PLAN), []
    for rank, mine in pieces.items():
        save_part(vault, OLD, rank, MODEL, mine, state(MODEL, 10).chunks)
    del vault.objects[OLD.name("rank-1-0.safetensors")]
    vault.fails = lambda operation, _: seen.append(operation)
    with pytest.raises(VaultFailed) as refusal:
        commit(vault, OLD, len(pieces), MODEL, about(MODEL, 10), "data")
    assert refusal.value.code == "missing"
    assert "commit" not in seen


def test_a_store_that_gives_back_another_manifest_is_told():
    vault, pieces = MemoryVault(), written(MODEL, PLAN)
    for rank, mine in pieces.items():
        save_part(vault, OLD, rank, MODEL, mine, state(MODEL, 10).chunks)
    view = FaultyVault(vault, Fault("lies", "read", len(pieces), 0.5))  # after the records
    with pytest.raises(InvalidManifest) as refusal:
        commit(view, OLD, len(pieces), MODEL, about(MODEL, 10), "data")
    assert view.fired
    assert refusal.value.code == "damaged"
