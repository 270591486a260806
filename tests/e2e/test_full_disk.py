"""`heddle train` on a disk that fills while it trains: each word about the weights is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disk of this test"),
]
HEDDLE = str(Path(sys.executable).parent / "heddle")
ROOT = Path(__file__).parents[2]
ROOMY, FULL, ROOM_FOR_PARTS = "size=64m", "size=64k", "size=1600k"  # the weights have 1.1 MB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for the weights."""
    found = tmp_path / "disk"
    found.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", ROOMY, "tmpfs", found], check=True)
    try:
        yield found
    finally:
        subprocess.run(["umount", "--lazy", found], check=True)


class Run:
    """A run of two emulated ranks whose output folder is on the disk."""

    def __init__(self, tmp_path: Path, disk: Path, steps: int) -> None:
        body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
        body["spec"] |= {"steps": steps}
        body["spec"]["training"] |= {"globalBatch": 2, "sequenceLength": 128}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
        nodes = "".join(f"- {{name: node-{n}, type: demo-fast, gpus: 1}}\n" for n in range(2))
        (tmp_path / "nodes.yaml").write_text(nodes)
        command = [HEDDLE, "train", str(tmp_path / "job.yaml"), "--headless"]
        command += ["--nodes", str(tmp_path / "nodes.yaml"), "--output-path", str(disk / "out")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )  # fmt: skip

    def until(self, words: str) -> str:
        """The first line with these words."""
        said = []
        for line in self.process.stdout or ():
            said.append(line)
            if words in line:
                return line
        raise AssertionError("".join(said))

    def ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def rest(self) -> str:
        return self.process.communicate(timeout=60)[0]


@pytest.mark.parametrize(
    ("left", "kept"),
    [(FULL, "No weights are saved"), (ROOM_FOR_PARTS, "The weights are saved in parts: ")],
    ids=["no part", "parts"],
)
def test_a_full_disk_says_what_to_free_and_ctrl_c_says_what_is_kept(
    tmp_path: Path, disk: Path, left: str, kept: str
) -> None:
    run = Run(tmp_path, disk, steps=20)
    try:
        run.until(" trains on ")
        subprocess.run(["mount", "-o", f"remount,{left}", disk], check=True)
        line = run.until("To save them, free ")
        assert f" MB on the disk of {disk / 'out'}" in line
        run.ctrl_c()
        run.until("again: end at once")
        run.ctrl_c()
        rest = run.rest()
    finally:
        run.process.kill()
    assert run.process.returncode == 130
    assert kept in rest, rest
    model = tmp_path / "model"
    exported = subprocess.run(
        [HEDDLE, "weights", "export", disk / "out", model], capture_output=True, text=True
    )
    assert (exported.returncode == 0) == ("parts" in kept), exported.stderr


def test_a_full_disk_keeps_a_run_from_its_end_until_ctrl_c_gives_the_save_up(
    tmp_path: Path, disk: Path
) -> None:
    run = Run(tmp_path, disk, steps=100_000)
    try:
        run.until(" trains on ")
        subprocess.run(["mount", "-o", f"remount,{FULL}", disk], check=True)
        run.ctrl_c()
        assert "no space left on device" in run.until("is not saved, and the job trains on").lower()
        run.until("/100000  loss")
        run.ctrl_c()
        rest = run.rest()
    finally:
        run.process.kill()
    assert run.process.returncode == 130
    assert "the save is given up" in rest
