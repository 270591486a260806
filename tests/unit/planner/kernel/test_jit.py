"""Where machine code is kept, and whether there is any."""

from __future__ import annotations

import numba
import pytest

from planner.kernel.jit import cache_folder, is_compiled


def test_the_folder_of_the_cache_names_numba_and_the_sources():
    assert cache_folder() == cache_folder()
    assert cache_folder().name.startswith(f"numba-{numba.__version__}-")


def test_the_kernel_is_compiled_once_any_function_of_it_is_kept(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    assert not is_compiled()
    kept = tmp_path / "kernel_1" / "local_search.anneal-1.py311.nbi"
    kept.parent.mkdir()
    kept.touch()
    assert is_compiled()
