"""checkpoint/listing.py: each attempt is whole, incomplete, damaged or newer, and that is said."""

from __future__ import annotations

import pytest

from tests.builders import MOE, tiled
from tests.checkpoints import about, manifest_of, save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.listing import NoCheckpoint, chosen, is_needed, kept, open_saved, saved_in
from worker.checkpoint.manifest import Damaged
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import VaultFailed

PLAN = tiled("2x3")
OLD, NEW, NEXT = Attempt(1, 10), Attempt(2, 20), Attempt(3, 15)


def vault_of(vault, *attempts):
    for attempt in attempts:
        assert save(vault, attempt, PLAN, state(MOE, attempt.step)) is not None
    return vault


def conditions(vault):
    return [(saved.attempt, saved.condition) for saved in saved_in(vault)]


def code_of(call, *arguments, **options):
    with pytest.raises((NoCheckpoint, VaultFailed, Damaged)) as refusal:
        call(*arguments, **options)
    assert "\n" not in str(refusal.value)
    return refusal.value.code


def test_the_newest_attempt_is_that_of_the_last_epoch():
    vault = vault_of(MemoryVault(), NEW, NEXT, OLD)
    assert [saved.attempt for saved in saved_in(vault)] == [NEXT, NEW, OLD]
    assert chosen(saved_in(vault)).attempt == NEXT
    assert chosen(saved_in(vault), 10).attempt == OLD


def test_of_one_step_the_newest_whole_attempt_counts():
    again = Attempt(4, 10)
    vault = vault_of(MemoryVault(), OLD, again)
    assert chosen(saved_in(vault), 10).attempt == again
    vault.remove(again.manifest)
    assert chosen(saved_in(vault), 10).attempt == OLD


def test_an_attempt_without_manifest_is_incomplete():
    vault = vault_of(MemoryVault(), OLD, NEW)
    vault.remove(NEW.manifest)
    assert conditions(vault) == [(NEW, "incomplete"), (OLD, "whole")]
    assert chosen(saved_in(vault)).attempt == OLD
    with pytest.raises(NoCheckpoint, match="of step 20 is whole") as refusal:
        chosen(saved_in(vault), 20)
    assert refusal.value.code == "whole"


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        (lambda content: content[:-1], "damaged"),
        (lambda _: manifest_of(about(MOE, 20), version=2).to_bytes(), "newer"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(change, condition):
    vault = vault_of(MemoryVault(), OLD, NEW)
    vault.objects[NEW.manifest] = change(vault.objects[NEW.manifest])
    newest = saved_in(vault)[0]
    assert (newest.condition, newest.manifest) == (condition, None)
    assert str(NEW) in newest.fault
    assert code_of(newest.read_manifest) == condition


def test_a_manifest_that_the_store_does_not_give_is_damage():
    vault = vault_of(MemoryVault(), OLD)

    def fail(operation, name):
        if operation == "read":
            raise VaultFailed("the disk fails", "other")

    vault.fails = fail
    assert conditions(vault) == [(OLD, "damaged")]


def test_a_file_that_is_missing_is_damage_in_any_vault():
    vault = vault_of(MemoryVault(), OLD)
    vault.remove(OLD.name("rank-0-0.safetensors"))
    (saved,) = saved_in(vault)
    assert saved.condition == "damaged"
    assert OLD.name("rank-0-0.safetensors") in saved.fault


def test_a_folder_tells_sizes_and_times_and_a_file_of_another_size_is_damage(tmp_path):
    vault = vault_of(FolderVault(tmp_path), OLD)
    (saved,) = saved_in(vault)
    files = list(tmp_path.glob("*/*.safetensors"))
    assert saved.num_bytes == sum(path.stat().st_size for path in files)
    assert saved.files == len(files)
    assert saved.saved_at_s == (tmp_path / OLD.manifest).stat().st_mtime
    with files[0].open("ab") as file:
        file.write(b"x")
    (saved,) = saved_in(vault)
    assert saved.condition == "damaged"
    assert files[0].name in saved.fault


def test_an_incomplete_attempt_of_a_folder_has_the_bytes_that_are_there(tmp_path):
    vault = vault_of(FolderVault(tmp_path), OLD)
    vault.remove(OLD.manifest)
    (saved,) = saved_in(vault)
    there = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    assert (saved.num_bytes, saved.saved_at_s) == (there, None)


def test_a_step_that_is_not_there_names_the_nearest():
    found = saved_in(vault_of(MemoryVault(), OLD, NEW))
    with pytest.raises(NoCheckpoint) as refusal:
        chosen(found, 17)
    assert refusal.value.code == "step"
    assert str(refusal.value).endswith("has step 20")


def test_a_path_without_checkpoints_is_refused(tmp_path):
    assert code_of(open_saved, str(tmp_path / "none")) == "missing"
    assert code_of(open_saved, str(tmp_path)) == "empty"
    vault_of(FolderVault(tmp_path / "output" / "checkpoints" / "tiny"), OLD)
    for above in (tmp_path / "output", tmp_path / "output" / "checkpoints"):
        with pytest.raises(NoCheckpoint, match="output/checkpoints/tiny"):
            open_saved(str(above))
    (tmp_path / "file").touch()
    assert code_of(open_saved, str(tmp_path / "file")) == "folder"
    assert code_of(open_saved, "gs://bucket") == "scheme"


def test_all_but_the_newest_may_go_and_what_is_newer_stays():
    vault = vault_of(MemoryVault(), OLD, NEW, NEXT)
    under_way = Attempt(4, 30)
    vault.put(under_way.name("part-0.json"), [b"{}"], 2)
    found = saved_in(vault)
    assert [saved.attempt for saved in kept(found, 1)] == [under_way, NEXT]
    assert [saved.attempt for saved in kept(found, 2)] == [under_way, NEXT, NEW]


def test_a_damaged_checkpoint_never_counts_as_one_of_those_that_stay():
    vault = vault_of(MemoryVault(), OLD, NEW, NEXT)
    vault.objects[NEW.manifest] = b""
    assert [saved.attempt for saved in kept(saved_in(vault), 2)] == [NEXT, OLD]
    for attempt in (NEXT, OLD):
        vault.objects[attempt.manifest] = b""
    assert code_of(kept, saved_in(vault), 1) == "whole"


def test_the_newest_whole_checkpoint_and_a_save_under_way_are_needed():
    vault = vault_of(MemoryVault(), OLD, NEW, NEXT)
    vault.remove(OLD.manifest)
    vault.objects[NEXT.manifest] = b""
    vault.put(Attempt(4, 30).name("part-0.json"), [b"{}"], 2)
    found = saved_in(vault)
    assert [is_needed(found, saved) for saved in found] == [True, False, True, False]
    vault.objects[NEW.manifest] = b""
    found = saved_in(vault)
    assert [is_needed(found, saved) for saved in found] == [True, False, False, True]
