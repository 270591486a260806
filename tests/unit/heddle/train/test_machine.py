"""heddle/train/machine.py: the processor is a GPU type with a name that a label can be."""

from __future__ import annotations

import pytest

from heddle.train.machine import MOST_NAME, MOST_RANKS, Machine, slug, this_machine
from planner.cluster.composition import LABEL

INTEL = "model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Neoverse-N1", "neoverse-n1"),
        ("", "unknown"),
    ],
)
def test_a_processor_has_a_short_name(name, expected):
    assert slug(name) == expected
    assert LABEL.fullmatch(Machine(name, 2, 1).gpu_type)


def test_a_long_name_is_cut():
    assert len(slug("processor " * 20 + "x y " * 30)) <= MOST_NAME


def test_the_system_says_what_it_is(tmp_path):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{INTEL}\nprocessor\t: 1\n{INTEL}\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    found = this_machine(tmp_path, tmp_path)
    assert found.gpu_type == "cpu-intel-xeon-platinum-8375c"
    assert found.memory_bytes == 1_000_000
    assert found.cores >= 1


def test_a_container_with_half_a_core_counts_one(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert this_machine(tmp_path, tmp_path).cores == 1


def test_a_machine_that_says_nothing_still_has_a_type_and_memory(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    found = this_machine(tmp_path, tmp_path)
    assert found.gpu_type.startswith("cpu-")
    assert found.memory_bytes > 1 << 20


def test_each_core_gets_a_rank_within_limits():
    assert [Machine("x", cores, 1).usual_ranks for cores in (0, 1, 2, 400)] == [1, 1, 2, MOST_RANKS]
