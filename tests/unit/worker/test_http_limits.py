"""worker/http_limits.py: whoever asks is answered, however many connections others hold."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from worker import http_limits
from worker.http_limits import TRUSTED, serving, trust

HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"
WHOLE = HALF + b"\r\n"


def run(test, monkeypatch, **limits):
    """Run a test at the address of an application that trusts who asks for /trusted."""
    for name, value in limits.items():
        monkeypatch.setattr(http_limits, name, value)

    async def answer(request):
        if request.path == "/trusted":
            trust(request)
        return web.Response(text="ok")

    async def main():
        app = web.Application()
        app[TRUSTED] = set()
        app.add_routes([web.get("/{any:.*}", answer)])
        async with serving(app, "127.0.0.1", 0) as address, asyncio.timeout(20):
            return await test(*address)

    return asyncio.run(main())


async def sent(host, port, data):
    """A connection that has said this much."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def asked(reader, writer, path="/"):
    """The status line of an answer on a connection that is there."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head.split(b"\r\n")[0]


def test_the_oldest_of_many_idle_connections_goes_for_a_new_one(monkeypatch):
    async def test(host, port):
        held = [await sent(host, port, HALF) for _ in range(4)]
        assert await asked(*await sent(host, port, b"")) == b"HTTP/1.1 200 OK"
        assert await held[0][0].read() == b""
        for reader, writer in held[2:]:
            writer.write(b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    run(test, monkeypatch, MOST_CONNECTIONS=4)


def test_who_proved_whose_he_is_keeps_his_connection(monkeypatch):
    async def test(host, port):
        mine = await sent(host, port, b"")
        assert await asked(*mine, "/trusted") == b"HTTP/1.1 200 OK"
        for _ in range(20):
            await sent(host, port, HALF)
            assert await asked(*mine) == b"HTTP/1.1 200 OK"

    run(test, monkeypatch, MOST_CONNECTIONS=4)


@pytest.mark.parametrize("said", [b"", HALF, b"G"], ids=["nothing", "half a head", "a letter"])
def test_a_request_that_does_not_come_ends_its_connection(monkeypatch, said):
    async def test(host, port):
        reader, _ = await sent(host, port, said)
        return await reader.read()

    assert run(test, monkeypatch, IDLE_S=0.05) == b""


def test_a_connection_between_two_requests_ends_too(monkeypatch):
    async def test(host, port):
        reader, writer = await sent(host, port, b"")
        await asked(reader, writer)
        return await reader.read()

    assert run(test, monkeypatch, IDLE_S=0.5) == b""


def test_ordinary_clients_notice_nothing(monkeypatch):
    async def test(host, port):
        async with ClientSession(f"http://{host}:{port}") as session:
            for _ in range(3):
                async with session.get("/") as answer:
                    assert await answer.text() == "ok"

    run(test, monkeypatch)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_burst_is_taken_in_rounds_so_that_its_connections_count(monkeypatch):
    """Those that are taken at once count only afterwards, and each takes a descriptor."""

    async def test(host, port):
        before, most, held = open_files(), 0, []
        for _ in range(200):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex((host, port))
        for _ in range(200):  # rounds of the loop
            await asyncio.sleep(0)
            most = max(most, open_files() - before - len(held))
        assert await asked(*await sent(host, port, b"")) == b"HTTP/1.1 200 OK"
        for each in held:
            each.close()
        return most

    assert 8 <= run(test, monkeypatch, MOST_CONNECTIONS=8, ROUND=8) <= 40


def test_whoever_comes_while_the_loop_is_busy_waits_in_the_kernel(monkeypatch):
    async def test(host, port):
        held = [socket.socket() for _ in range(100)]
        for each in held:
            each.settimeout(10.0)  # who finds no room waits for ever: this loop takes nobody
            each.connect((host, port))
        for each in held:
            each.close()

    run(test, monkeypatch)


def test_a_server_may_open_as_many_files_as_its_limit_can_be_raised_to(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def test(host, port):
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        assert run(test, monkeypatch) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
