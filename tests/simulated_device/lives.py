"""Runs stories in processes of their own, from one that has imported everything once.

python -m tests.simulated_device.lives FOLDER DATA family:way|garbage:case:mutant ...
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tests.unit.worker.forks import ended, forked

ROOT = Path(__file__).parents[2]
RANKS = 2
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
Told = list[tuple[str, Any]]  # in the order in which a rank said it


def lives(folder: Path, data: str, stories: Sequence[str], limit_s: float) -> dict[str, list[Told]]:
    """{story: what each rank said}, of those of `story.py` and of `garbage.py`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulated_device.lives", str(folder), data, *stories],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=None if "STACKS_AT" in os.environ else subprocess.PIPE,  # else lost at a limit
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, (done.stderr or "see the log")[-4000:]
    return json.loads(done.stdout)


def told_once(factory: Any, stories: Sequence[str], limit_s: float) -> dict[str, Any]:
    """`lives`, played once in a run, whichever of its workers ask: the others await the first."""
    from tests.unit.worker.data.lines import prepared_lines

    base = factory.getbasetemp()  # of pytest's temporary folders
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    told = shared / f"lives-{hashlib.blake2b(repr(stories).encode(), digest_size=8).hexdigest()}"
    with told.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            data = prepared_lines(factory.mktemp("lines"))
            found = lives(factory.mktemp("lives"), data, stories, limit_s)
            told.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(told.read_text(encoding="utf-8"))


def main(folder: Path, data: str, stories: Sequence[str]) -> None:
    """Play one story after the other, so that ranks have the cores for themselves."""
    answer = os.dup(1)
    os.dup2(2, 1)  # where DeepSpeed's log goes
    from tests.simulated_device import garbage  # noqa: F401 # once, for all ranks, with the story
    from worker.engine.deepspeed import warm_up

    warm_up()
    found = {}
    for name in stories:
        own = folder / name.replace(":", "-")
        own.mkdir()
        children = [forked(partial(_live, name, rank, own, data)) for rank in range(RANKS)]
        told = [[json.loads(line) for line in said.splitlines()] for said in ended(children)]
        if any(not rows or rows[-1][0] != "end" for rows in told):
            sys.exit(f"a rank of {name} failed")
        found[name] = told
    os.write(answer, json.dumps(found).encode())


def _live(name: str, rank: int, folder: Path, data: str, lines: TextIO) -> None:
    from torch.distributed import FileStore

    from tests.simulated_device import garbage, story

    def say(what: str, said: Any) -> None:
        lines.write(json.dumps([what, said]) + "\n")
        lines.flush()  # it may be killed

    store = FileStore(str(folder / "store"), RANKS)
    match name.split(":"):
        case ["garbage", case, mutant]:
            garbage.play(garbage.CASES[case], mutant, rank, store, say, data, folder)
        case [family, way]:
            story.play(family, way, rank, store, say, data, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
