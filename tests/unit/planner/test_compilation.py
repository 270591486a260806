"""Machine code of older versions goes; what cannot go is named."""

from __future__ import annotations

import os
import sys

import pytest

from planner.compilation import forget_others, warm_up
from planner.estimator import jit


def test_machine_code_of_other_versions_goes(tmp_path):
    own, other = tmp_path / "numba-0.2.0-0123456789ab", tmp_path / "numba-0.1.0-0123456789ab"
    for folder in (own, other):
        folder.mkdir()
        (folder / "kept.nbi").touch()
    forget_others(own)
    assert (own / "kept.nbi").exists()
    assert not other.exists()


def test_what_cannot_be_removed_is_named(tmp_path, capsys: pytest.CaptureFixture[str]):
    own, other = tmp_path / "numba-0.2.0-0123456789ab", tmp_path / "numba-0.1.0-0123456789ab"
    own.mkdir()
    other.touch()  # no folder, so that it cannot be removed as one
    forget_others(own)
    assert other.exists()
    assert "stays" in capsys.readouterr().err


def test_beside_a_copy_among_temporary_files_nothing_is_removed(tmp_path):
    own, foreign = tmp_path / "heddle-kernel-0-numba-0.2.0", tmp_path / "numba-of-somebody-else"
    own.mkdir()
    foreign.mkdir()
    forget_others(own)
    assert foreign.exists()


def test_ctrl_c_of_a_terminal_reaches_only_who_waits(tmp_path, monkeypatch):
    group, python = tmp_path / "group", tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncut -d ' ' -f 5 /proc/$$/stat > {group}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(jit, "FOLDER", tmp_path)
    warm_up()
    assert int(group.read_text()) != os.getpgrp()
