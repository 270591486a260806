"""Forward a listening socket of the host into the cluster: `forward.py FD ADDRESS PORT`.

The socket is made on the host's loopback and handed over; this program runs in the cluster's
network namespace, so what it opens itself is in there.  It is the only way in, and none leads out.
"""

from __future__ import annotations

import asyncio
import socket
import sys

_CHUNK_BYTES = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()  # one side is gone: so is the other


async def forward(listener: socket.socket, address: str, port: int) -> None:
    """Serve until killed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        far_writer.close()
        writer.close()

    server = await asyncio.start_server(serve, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    print("started", flush=True)
    asyncio.run(forward(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
