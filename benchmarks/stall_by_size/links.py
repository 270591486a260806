"""Speed of bare gloo between two idle ranks of this machine: the measure of every transfer."""

from __future__ import annotations

import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time

CHUNK_BYTES = 16_000_000


def main(port: int, rank: int, num_bytes: int) -> None:
    """Send `num_bytes` in chunks from rank 0 to rank 1, three times, all memory touched."""
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    limit = datetime.timedelta(seconds=600)
    group = ProcessGroupGloo(PrefixStore("link", store), rank, 2, limit)
    body = torch.ones(num_bytes, dtype=torch.uint8)
    group.allreduce([torch.ones(1)]).wait()
    seconds = []
    for _ in range(3):
        begin_s = time.monotonic()
        pending = []
        for start in range(0, num_bytes, CHUNK_BYTES):
            part = [body[start : start + CHUNK_BYTES]]
            pending.append(group.recv(part, 0, 0) if rank else group.send(part, 1, 0))
        for work in pending:
            work.wait()
        seconds.append(time.monotonic() - begin_s)
    group.allreduce([torch.ones(1)]).wait()
    if rank:
        print(json.dumps(seconds))


def bytes_per_s(num_bytes: int) -> float:
    """Of the median of three transfers: the load of a shared machine changes as they pass."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.stall_by_size.links", str(port)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(num_bytes)], env=environment, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    answer = ranks[1].communicate(timeout=600)[0]
    ranks[0].communicate(timeout=60)
    return num_bytes / statistics.median(json.loads(answer))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:4]))
