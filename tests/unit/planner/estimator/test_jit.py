"""Where machine code is kept, whether there is any, and whose arrays compiled functions hold."""

from __future__ import annotations

import ast
import math
import sys
from itertools import count
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaError

import planner
from planner.cluster.composition import Composition
from planner.compilation import warm_up
from planner.cost import formulas
from planner.estimator import by_reference, tables
from planner.estimator import jit as jit_module
from planner.estimator.build_tables import pricing_of
from planner.estimator.jit import (
    NUMBERS,
    cache_folder,
    compiled_sources,
    is_compiled,
    jit,
    note_compiled,
)
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Floats
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.policy import features
from planner.profiles.generator import find_profile
from planner.search.column_generation.columns import ColumnSearch
from planner.search.searcher import Allowance, Searcher


def test_the_folder_of_the_cache_names_numba_and_the_sources():
    assert cache_folder() == cache_folder()
    assert cache_folder().name.startswith(f"numba-{numba.__version__}-")


def test_functions_of_other_programs_keep_their_folder():
    theirs = numba.config.CACHE_DIR
    assert theirs != str(jit_module.FOLDER)
    own = jit(_one)
    assert theirs == numba.config.CACHE_DIR
    if not numba.config.DISABLE_JIT:
        assert Path(own.stats.cache_path).is_relative_to(jit_module.FOLDER)


def _one() -> int:
    return 1


def test_every_file_that_defines_compiled_functions_names_the_folder():
    sources = compiled_sources()
    assert {path for path, _, _ in _compiled_functions()} <= set(sources)
    for needed in (jit_module, by_reference, tables, features, formulas):
        assert Path(str(needed.__file__)) in sources


def test_the_estimator_is_compiled_once_all_of_it_is(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jit_module, "FOLDER", tmp_path)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    kept = tmp_path / "annealing_1" / "local_search.anneal-1.py311.nbi"
    kept.parent.mkdir()
    kept.touch()
    assert not is_compiled()
    note_compiled()
    assert is_compiled()


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_no_function_is_left_to_be_compiled_later():
    """The marker says so; machine code is named by file, function and line."""
    warm_up()
    assert is_compiled()
    kept = [path.name for path in jit_module.FOLDER.rglob("*.nbi")]
    missing = [
        f"{path.stem}.{function.name}"
        for path, how, function in _compiled_functions()
        if how != "inlined"
        and not any(name.startswith(f"{path.stem}.{function.name}-") for name in kept)
    ]
    assert not missing


def test_a_function_that_borrows_says_that_it_returns_numbers():
    def gives_view(row: Floats) -> Floats:
        return row[1:]

    with pytest.raises(TypeError, match=r"gives_view returns Floats; .* returns numbers"):
        jit(gives_view)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_a_function_that_borrows_makes_no_arrays():
    def twice(row: Floats) -> float:
        return float((row + row)[0])

    with pytest.raises(NumbaError, match="NRT required"):
        jit(twice)(np.ones(1))


def test_no_function_that_borrows_calls_one_that_gives_arrays_back():
    """Nobody would ever let those arrays go."""
    functions = list(_compiled_functions())
    gives = {f.name for _, how, f in functions if how == "allocating" and not _gives_numbers(f)}
    assert functions
    for _, how, function in functions:
        if how != "allocating":
            called = {node.func.id for node in ast.walk(function) if _is_named_call(node)}
            assert not called & gives, f"{function.name} calls {called & gives}"


def test_a_search_lets_all_arrays_go():
    workload = Workload(
        model=find_model("llama3-8b"), global_batch=512, sequence_length=2048, precision="fp16"
    )
    pricing = pricing_of(workload, Composition.from_text("h100=2x8"), find_profile(workload))
    assert pricing is not None
    searcher = Searcher(pricing, SearchLimits(8, 2, 0, math.inf, math.inf), 0)

    def search() -> None:
        searcher.start()
        searcher.walk(Allowance(searcher.evaluations + 600), templates=2)
        asked = count()
        mixer = ColumnSearch(pricing, searcher.limits)
        mixer.run(searcher.top_k, lambda: next(asked) > 4)

    search()
    arrays = [*_arrays(pricing.tables), *_arrays(searcher.top_k), *_arrays(searcher._work)]
    held = [sys.getrefcount(array) for array in arrays]
    search()
    assert [sys.getrefcount(array) for array in arrays] == held


def _compiled_functions():
    """(file, decorator, function) of all compiled functions of the planner."""
    for path in sorted(Path(planner.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for how in node.decorator_list:
                    if isinstance(how, ast.Name) and how.id in ("jit", "allocating", "inlined"):
                        yield path, how.id, node


def _gives_numbers(function: ast.FunctionDef) -> bool:
    assert function.returns is not None
    return NUMBERS.fullmatch(ast.unparse(function.returns)) is not None


def _is_named_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _arrays(fields):
    for field in fields:
        if isinstance(field, tuple):
            yield from _arrays(field)
        elif isinstance(field, np.ndarray):
            yield field
