"""Machine code of older versions goes; what cannot go is named."""

from __future__ import annotations

import pytest

from planner.compilation import forget_others


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
