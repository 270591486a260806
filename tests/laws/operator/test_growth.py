"""A look at a job costs in proportion to its ranks, and a thousand nodes fit into its budget."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pure_core import LOSS, QUIET, PureCore

SIZES = (50, 200, 1000)
LIMIT = 1.5  # power of the growth: halfway from linear to quadratic, as caches cost too
NOISE_S = 0.003  # below, a time says nothing
ROUNDS = 5
# CPU seconds at 1,000 nodes of 8 GPUs: three times the goal, for slower and busier machines.
BUDGETS_S = {f"decide: {QUIET}": 3 * 0.15, f"decide: {LOSS}": 3 * 0.5}


@pytest.fixture(scope="module")
def cores() -> dict[int, PureCore]:
    return {nodes: PureCore(nodes) for nodes in SIZES}


def times(cores: dict[int, PureCore], name: str) -> Iterator[dict[int, float]]:
    """The least CPU seconds by number of nodes, after one round of measuring and after more."""
    least: dict[int, float] = {}
    for _ in range(ROUNDS):
        for nodes, core in cores.items():
            least[nodes] = min(core.cpu_s(name), least.get(nodes, 1e9))
        yield least


def is_linear(least: dict[int, float]) -> bool:
    few, some, many = (least[nodes] for nodes in SIZES)
    return some <= max(NOISE_S, 4**LIMIT * few) and many <= max(5 * NOISE_S, 5**LIMIT * some)


@pytest.mark.parametrize("name", sorted(PureCore(2).work))
def test_what_is_computed_of_a_job_grows_with_its_ranks(cores, name):
    assert any(is_linear(least) for least in times(cores, name)), dict(least_of(cores, name))


def least_of(cores: dict[int, PureCore], name: str) -> dict[int, float]:
    return {nodes: core.cpu_s(name) for nodes, core in cores.items()}


@pytest.mark.parametrize("name", BUDGETS_S)
def test_a_look_at_a_thousand_nodes_keeps_its_budget(cores, name):
    found = [cores[1000].cpu_s(name) for _ in range(3)]
    assert min(found) <= BUDGETS_S[name]


def test_a_law_that_holds_for_all_fails_for_what_is_quadratic():
    assert not is_linear({nodes: 1e-6 * nodes**2 for nodes in SIZES})
    assert is_linear({nodes: 1e-4 * nodes for nodes in SIZES})
