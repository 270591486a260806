"""A request that was given up is not sent later."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from kubernetes.aio.client import Configuration

from heddle_operator.kube.client import ApiRefused, KubeApi

GIVEN_UP_S = 2.0  # a busy machine has connected by then
LIMIT_S = 30.0
LARGE = {"data": {"x": "x" * (16 << 20)}}  # more than the buffers of both kernels


def test_of_a_request_that_was_given_up_nothing_more_is_sent():
    """The server reads nothing until the request has been given up; then it reads on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)

        async def main():
            configuration = Configuration(host=f"http://127.0.0.1:{server.getsockname()[1]}")
            async with KubeApi(configuration) as api:
                with pytest.raises(ApiRefused, match="does not answer"):
                    await api.fenced(lambda: GIVEN_UP_S).patch(
                        "/api/v1/namespaces/n/configmaps/c", LARGE
                    )
                return await asyncio.to_thread(read_all)

        def read_all():
            connection, _ = server.accept()
            read = 0
            with connection, contextlib.suppress(ConnectionResetError):
                while data := connection.recv(1 << 20):
                    read += len(data)
                return f"{read} bytes and an end in order"
            return "a reset"

        assert asyncio.run(main()) == "a reset"
