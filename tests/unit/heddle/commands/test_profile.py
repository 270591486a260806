"""`heddle profile`: what it writes can be priced with, and what it cannot do it says."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from heddle.commands.plan import plan
from heddle.commands.profile import profile
from planner.errors import HeddleError
from tests.refusals import refused


def run(command, line: str) -> str:
    result = CliRunner().invoke(command, shlex.split(line), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_measured_profile_is_planned_with(tmp_path):
    line = f"--gpu-type demo-fast --micro-batch 1,2 --repeats 1 --output-path {tmp_path}"
    done = CliRunner().invoke(profile, shlex.split(f"{line} --device cpu"))
    assert "6 measured entries; links assumed" in done.stdout
    assert "measuring demo-fast" in done.stderr
    stated = json.loads((tmp_path / "tiny-llama" / "demo-fast.json").read_text())
    assert stated["origin"] == "measured"
    assert {"hardware", "versions", "date"} <= set(stated["provenance"])
    text = run(plan, f"--composition demo-fast=2x3 --batch 4 --profile {tmp_path}")
    assert "links assumed" in text


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("--device cpu", ("Missing", "gpu_type")),
        ("--gpu-type x --device cpu --tp 3", ("OutOfRange", "tp")),
        ("--gpu-type x --device cpu --tp two", ("Malformed", "--tp")),
        ("--gpu-type x --device cpu --model gpt-9", ("Unknown", None)),
        ("--device cpu links", ("Missing", "gpu_type")),
        ("--gpu-type '' --device cpu", ("Malformed", "gpu_type")),
        ("--gpu-type x/y --device cpu", ("Malformed", "gpu_type")),
        ("--gpu-type links --device cpu", ("Malformed", "gpu_type")),
        ("--gpu-type x --output-path /dev/null --device cpu", ("Unwritable", "output_path")),
        ("--gpu-type x --output-path /dev/null --device cpu links", ("Unwritable", "output_path")),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(line, mistake):
    with refused(HeddleError, *mistake):
        run(profile, line)


def test_links_between_nodes_are_of_no_staged_wire(monkeypatch, tmp_path):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    line = f"--gpu-type x --output-path {tmp_path} --device cpu --wire staged links"
    with refused(HeddleError, "Unsupported", "wire"):
        run(profile, line)


@pytest.mark.parametrize("size", ["many", "2"])
def test_half_a_launcher_is_one_sentence(monkeypatch, tmp_path, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with refused(HeddleError, "Malformed"):
        run(profile, f"--gpu-type x --output-path {tmp_path} --device cpu links")
