"""Runs a function on the ranks of a real gloo world: processes forked from one that has only torch.

    results = run_ranks("tests.unit.worker.world.test_world:claims", size)

The function gets (rank, store) in each process and answers something that JSON can hold.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tests.unit.worker.forks import ended, forked

ROOT = Path(__file__).parents[3]
LIMIT_S = 120.0


def run_ranks(function: str, size: int, limit_s: float = LIMIT_S) -> list[Any]:
    """What `module:function` answered on each rank, in rank order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.ranks", function, str(size)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=None if "STACKS_AT" in os.environ else subprocess.PIPE,  # else lost at a limit
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stderr or f"{function} failed; see the log"
    return json.loads(done.stdout)


def main(function: str, size: int) -> None:
    """Fork the ranks before any thread starts, then serve their store until all have answered."""
    import torch  # noqa: F401 # once, for all ranks

    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    ports = [os.pipe() for _ in range(size)]  # in each a rank hears the port of the store
    children = [
        forked(partial(_answer, call, rank, heard)) for rank, (heard, _) in enumerate(ports)
    ]
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, tell in ports:
        os.write(tell, f"{store.port}\n".encode())
    answers = ended(children)
    if "" in answers:
        sys.exit(f"rank {answers.index('')} of {function} failed")
    sys.stdout.write(f"[{','.join(answers)}]")


@contextmanager
def engine_loaded() -> Iterator[None]:
    """In a rank: its engine is ready, and the log of DeepSpeed goes to standard error."""
    with redirect_stdout(sys.stderr):  # from its import on
        from worker.engine.deepspeed import begin, warm_up

        warm_up()
        os.environ["LOCAL_RANK"] = "0"
        begin()
        yield


def _answer(call: Any, rank: int, heard: int, lines: TextIO) -> None:
    from torch.distributed import TCPStore

    port = int(os.read(heard, 16))
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    lines.write(json.dumps(call(rank, store)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
