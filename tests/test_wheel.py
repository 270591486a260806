"""The wheel: what it asks for, and that its planner runs where there is no framework."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "deepspeed", "kopf", "kubernetes", "aiohttp", "tokenizers", "prometheus_client")
HIDE = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"no module {{name}}", name=name)
sys.meta_path.insert(0, Hidden())
from heddle.main import main
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by the tools that are installed, without a network."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The content of the wheel, as an installer lays it out."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    return folder


def heddle(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(installed)!r}){HIDE}",
            *arguments,
        ],
        cwd=installed,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_frameworks_are_asked_for_by_extras_only(installed):
    (metadata,) = installed.glob("heddle-*.dist-info/METADATA")
    head = Parser().parsestr(metadata.read_text(encoding="utf-8"))
    extras = set(head.get_all("Provides-Extra", []))
    assert extras == {"all", "data", "dev", "operator", "plan", "tensorboard", "train", "worker"}
    base = [row for row in head.get_all("Requires-Dist", []) if "extra ==" not in row]
    assert base
    assert not [row for row in base if row.startswith(HEAVY)]
    worker = [row for row in head.get_all("Requires-Dist", []) if "extra == 'worker'" in row]
    assert any(row.startswith("torch") for row in worker)


def test_a_command_that_needs_more_names_what_to_install(installed):
    done = heddle(installed, "worker", "reference", "--training", __file__, "--steps", "1")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: this command needs torch, which is not installed; in the checkout of Heddle "
        "run: pip install '.[worker]'\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_planner_of_the_wheel_plans_without_a_framework(installed):
    """The estimator is compiled anew: the machine code of the sources is not in the wheel."""
    done = heddle(installed, "plan", "--composition", "demo-fast=1x2+1x3", "--budget-s", "0.3")
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
