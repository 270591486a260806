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
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 120.0


def run_ranks(function: str, size: int, limit_s: float = LIMIT_S) -> list[Any]:
    """What `module:function` answered on each rank, in rank order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.ranks", function, str(size)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(function: str, size: int) -> None:
    """Fork the ranks before any thread starts, then serve their store until all have answered."""
    import torch  # noqa: F401 # once, for all ranks

    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    children = [_fork(call, rank, size) for rank in range(size)]
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, _, port in children:
        os.write(port, f"{store.port}\n".encode())
    answers = []
    for pid, answer, _ in children:
        with os.fdopen(answer) as lines:
            answers.append(lines.read())
        os.waitpid(pid, 0)
    if "" in answers:
        sys.exit(f"rank {answers.index('')} of {function} failed")
    sys.stdout.write(f"[{','.join(answers)}]")


def _fork(call: Any, rank: int, size: int) -> tuple[int, int, int]:
    """(pid, where its answer comes from, where it hears the port of the store)."""
    answer, out = os.pipe()
    port_in, port = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(port)
            from torch.distributed import TCPStore

            heard = int(os.read(port_in, 16))
            store = TCPStore("127.0.0.1", heard, is_master=False, wait_for_workers=False)
            os.write(out, json.dumps(call(rank, store)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(out)
    os.close(port_in)
    return pid, answer, port


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
