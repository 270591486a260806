"""A rank's life on a simulated device, strictly: no offence, and the bits of the processor.

`story.py` tells it.  A device changes where tensors live and how they travel; losses, state,
checkpoints and final weights stay as they are, bit by bit.
`make test` plays it for one dense family and for one with experts.  What each alone catches:
    llama3    stages that send, a stage that is recomputed whole and one in part, documents, TP
    mixtral   rows of experts that travel, with unequal micro-batches; the router's fp32
The others add precision, dropout, windows, biases and a tied head, and are played by
`make test-system`.
"""

from __future__ import annotations

import pytest

from tests.families import ALL, FAMILIES, MIXTURES
from tests.simulated_device.law import disorder, stuck
from tests.simulated_device.lives import Told, told_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
LIMIT_S = 600.0  # on a busy machine; a quiet one needs half a minute
FIRST = ("llama3", "mixtral")
TOLD = [one for one in ALL if one != "deepseek-v2-groups"]  # it differs in its choice alone
OTHERS = tuple(
    [one for one in TOLD if one in of and one not in FIRST] for of in (FAMILIES, MIXTURES)
)
families = pytest.mark.parametrize(
    "family",
    [*FIRST, *(pytest.param(f, marks=pytest.mark.system) for f in TOLD if f not in FIRST)],
)
EQUAL = ("digest", "evaluation", "loss", "norm", "bits", "save", "files", "saved", "lost")
STAGED = "gpt2"  # dropout, biases and positions
WAITS = 1  # of the host in a step
COPIES = 4  # to the device for each micro-batch: tokens, labels, their weight, positions
# Places of the model that drop, each a copy of its keys; the four of attention hash their masks in
# the backward pass again.
DROPOUTS = {"gpt2": 13 + 4, "qwen2": 4 + 4}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each rank said in the story of a family; those of one group are played together."""
    found: dict[str, list[Told]] = {}

    def of(family: str, way: str) -> list[Told]:
        if f"{family}:{way}" not in found:
            group = FIRST if family in FIRST else OTHERS[family in MIXTURES]
            stories = [f"{one}:{of}" for one in group for of in ("cpu", "recorded")]
            stories = [f"{family}:cpu", f"{family}:staged"] if way == "staged" else stories
            found.update(told_once(tmp_path_factory, stories, LIMIT_S))
        return found[f"{family}:{way}"]

    return of


def said(rows: Told, *kinds: str):
    return [(kind, value) for kind, value in rows if kind in kinds]


@families
def test_losses_state_and_files_have_the_bits_of_the_processor(family, told):
    for on_cpu, on_device in zip(told(family, "cpu"), told(family, "recorded"), strict=True):
        assert said(on_device, *EQUAL) == said(on_cpu, *EQUAL)
        assert len(said(on_cpu, "loss")) >= 5


@families
def test_who_goes_on_alone_has_noticed_the_loss_and_trained_nothing_of_the_step(family, told):
    survivor, victim = told(family, "recorded")
    assert said(survivor, "lost") == [("lost", [5, None, True])]
    assert len(said(survivor, "loss")) == len(said(victim, "loss")) + 2
    assert len(said(survivor, "files")) == 1


@families
def test_nccl_would_run_all_operations_in_one_order_from_one_thread(family, told):
    logs = [value for rows in told(family, "recorded") for _, value in said(rows, "log")]
    assert len(logs) == 2
    assert min(map(len, logs)) > 100
    assert stuck(logs) == []
    assert disorder(logs) == []


@families
def test_a_rank_that_joins_a_device_runs_its_kernels_once_and_one_that_holds_state_never(
    family, told
):
    """Its passes send nothing: else two threads would issue, see the test above."""
    for way, times in (("cpu", 0), ("recorded", 1)):
        for rows in told(family, way):
            assert said(rows, "warmed") == [("warmed", times)]


@pytest.mark.parametrize(
    "family", [f if f in FIRST else pytest.param(f, marks=pytest.mark.system) for f in FAMILIES]
)
def test_the_host_waits_once_a_step_and_copies_no_more_than_the_input(family, told):
    for rows in told(family, "recorded"):
        budgets = [value for _, value in said(rows, "budget")]
        assert {waits for waits, _ in budgets} == {WAITS}
        most = max(copies for _, copies in budgets)
        assert most <= 4 * (COPIES + DROPOUTS.get(family, 0)) + 1  # and the frequencies, once


@pytest.mark.parametrize(
    "family",
    [f if f in FIRST else pytest.param(f, marks=pytest.mark.system) for f in TOLD if f in MIXTURES],
)
def test_of_a_mixture_the_host_waits_once_for_each_pass_whose_rows_travel(family, told):
    blocks = sum(MIXTURES[family].kind(layer) == "moe_block" for layer in range(6))
    for rows in told(family, "recorded"):
        waits = {waits for _, (waits, _) in said(rows, "budget")}
        # Epochs 1 and 2 spread experts: 3 and 4 rounds, each pass recomputed; later ones do not.
        assert waits == {WAITS, WAITS + 2 * 3 * blocks, WAITS + 2 * 4 * blocks}


@pytest.mark.system
def test_through_staging_memory_the_bits_are_those_of_the_processor_too(told):
    staged = told(STAGED, "staged")
    for on_cpu, on_device in zip(told(STAGED, "cpu"), staged, strict=True):
        assert said(on_device, *EQUAL) == said(on_cpu, *EQUAL)
