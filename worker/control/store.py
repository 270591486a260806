"""The store process of a pod: a TCPStore that epochs meet at.

It is not part of a rank, for any rank may leave, and the store must outlive every world that forms
through it.  Its death leaves existing groups working; only new groups cannot form.
It sends heartbeats as a rank does: one that is stopped would hold everybody up who meets there.
"""

from __future__ import annotations

import socket

from worker.control.channel import BEAT_S, Channel


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
    try:
        while True:  # ends by SystemExit
            channel.send("beat", progress=0, part="store", waiting=True)
            channel.receive(BEAT_S)
    finally:
        del store
