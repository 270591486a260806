"""A folder's profile is used for what it speaks of, and for nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from planner.errors import UnprofiledConfiguration
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.chosen import check_profiles, choose_profile
from planner.profiles.generator import find_profile
from planner.profiles.profile import PROFILES
from tests.refusals import refused

WORKLOAD = usual_workload(find_model("llama3-8b"))


@pytest.fixture
def folder(tmp_path):
    """A folder with one GPU type of one model, mounted as a ConfigMap is."""
    own = tmp_path / "llama3-8b"
    own.mkdir()
    (tmp_path / "..data").symlink_to(tmp_path / "..2026_11_29")
    (tmp_path / "..2026_11_29").mkdir()
    shutil.copy(PROFILES / "llama3-8b" / "links.json", own)
    text = (PROFILES / "llama3-8b" / "h100.json").read_text()
    (own / "h100.json").write_text(text.replace('"modelled"', '"measured"'))
    return tmp_path


def test_a_folders_profile_is_used_for_its_workload(folder):
    check_profiles(folder)
    own, note = choose_profile(WORKLOAD, folder)
    assert set(own.types) == {"h100"}
    assert note == ""


@pytest.mark.parametrize(
    "change", [{"sequence_length": 4096}, {"precision": "bf16"}, {"sequence_parallel": True}]
)
def test_another_workload_has_heddles_profile_and_a_note(folder, change):
    other = replace(WORKLOAD, **change)
    found, note = choose_profile(other, folder)
    assert found == find_profile(other)
    assert note


def test_a_model_without_a_folder_has_heddles_profile(folder):
    other = usual_workload(find_model("mixtral-8x7b"))
    assert choose_profile(other, folder) == (find_profile(other), "")
    assert choose_profile(WORKLOAD) == (find_profile(WORKLOAD), "")


def test_a_folders_profile_follows_the_wire(folder):
    found, note = choose_profile(replace(WORKLOAD, wire="staged"), folder)
    assert (found.wire, set(found.types), note) == ("staged", {"h100"}, "")


def test_a_folder_that_cannot_be_read_is_refused(folder, tmp_path):
    with refused(UnprofiledConfiguration, "Unreadable"):
        check_profiles(tmp_path / "none")
    with refused(UnprofiledConfiguration, "Missing"):
        check_profiles(tmp_path / "llama3-8b")
    (folder / "llama3-8b" / "h100.json").write_text("{")
    with refused(UnprofiledConfiguration, "Unreadable"):
        check_profiles(folder)
