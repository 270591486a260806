"""What the worker's image leaves out of torch's wheels: training loads none of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = next(Path(path) for path in sys.path if (Path(path) / "torch" / "lib").is_dir())
LOADS_AN_ENGINE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import worker.rank.process
import worker.engine.deepspeed
worker.engine.deepspeed.warm_up()
print(sorted({names} & set(sys.modules)))
"""


def left_out() -> list[str]:
    """The patterns of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    listed = re.search(r"site-packages && rm -rf \\\n(.*?)&& find", text, re.DOTALL)
    assert listed is not None
    return listed[1].replace("\\", " ").split()


def test_every_pattern_is_of_something_that_is_there():
    assert [pattern for pattern in left_out() if not [*SITE.glob(pattern)]] == []


def test_image_and_pod_ask_for_the_same_parts_of_the_driver():
    """A container outside Kubernetes has the image's word alone; test_pods.py reads the pod's."""
    stage = (ROOT / "Dockerfile").read_text().partition("AS worker\n")[2]
    assert re.findall(r"NVIDIA_DRIVER_CAPABILITIES=(\S+)", stage) == ["compute,utility"]


@pytest.mark.slow  # the linker reads two gigabytes
def test_torch_is_linked_with_none_of_it():
    gone = {found.name for pattern in left_out() for found in SITE.glob(pattern)}
    linked = set()
    for library in (SITE / "torch" / "lib").glob("*.so"):
        done = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True)
        linked |= set(re.findall(r"^\s*(\S+) => ", done.stdout, re.MULTILINE))
    assert {"libcudart.so.13", "libcublas.so.13", "libnccl.so.2"} <= linked
    assert not linked & gone


@pytest.mark.slow  # it imports torch and DeepSpeed
def test_an_engine_is_loaded_without_the_packages_that_are_left_out():
    packages = {pattern for pattern in left_out() if "/" not in pattern and "*" not in pattern}
    assert packages == {"triton"}
    program = LOADS_AN_ENGINE.replace("{names}", repr(packages))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[]"
