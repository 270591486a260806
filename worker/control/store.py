"""The store process of a pod: a TCPStore that epochs meet at.

It is not part of a rank, for any rank may leave, and the store must outlive every world that forms
through it.  Its death leaves existing groups working; only new groups cannot form.
"""

from __future__ import annotations

import datetime
import socket
from typing import TYPE_CHECKING

from worker.control.channel import Channel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def main(connection: socket.socket, host: str) -> None:
    """Serve a store on `host` until the agent closes the channel."""
    from torch._C._distributed_c10d import TCPStore

    channel = Channel(connection)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))  # bound by hand: TCPStore itself listens on all addresses
    listener.listen(128)
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    channel.send("store", address=f"{host}:{port}")
    channel.receive(None)  # ends by SystemExit
    del store


def connect(address: str, timeout_s: float) -> Store:
    """A client of the store at host:port.

    Raises:
        torch.distributed.DistNetworkError: nothing answers there in time.
    """
    from torch._C._distributed_c10d import TCPStore

    host, _, port = address.rpartition(":")
    return TCPStore(
        host,
        int(port),
        is_master=False,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
