"""checkpoint/vaults/s3_client.py: addresses of another form, and stores that are silent."""

from __future__ import annotations

import socket
import time

import pytest

from tests.s3_server import ENVIRONMENT, alone
from worker.checkpoint.vaults.s3_client import Patience
from worker.checkpoint.vaults.s3_vault import S3Vault
from worker.checkpoint.vaults.vault import VaultFailed

NAME = "step-7.e2/rank-0.safetensors"
QUICK = Patience(connect_s=0.5, silent_s=0.5, tries=2)


def failure(call, *arguments):
    with pytest.raises(VaultFailed) as refusal:
        call(*arguments)
    return refusal.value


def test_an_address_where_nobody_listens_is_told(monkeypatch):
    alone(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    vault = S3Vault("bucket", environment=environment, patience=QUICK)
    told = failure(vault.names)
    assert told.code == "unreachable"
    assert f"127.0.0.1:{port}" in str(told)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["names", "put"])
def test_a_store_that_takes_a_connection_and_is_silent_ends_a_call(monkeypatch, call):
    alone(monkeypatch)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        vault = S3Vault(
            "bucket", environment=ENVIRONMENT | {"AWS_ENDPOINT_URL": address}, patience=QUICK
        )
        began_s = time.monotonic()
        if call == "put":  # more than the buffers of a socket take
            told = failure(vault.put, NAME, [bytes(12 << 20)], 12 << 20)
        else:
            told = failure(vault.names)
        assert told.code == "unreachable"
        assert time.monotonic() - began_s < 30.0


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "ftp://host", "http://", "http://ho st"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(VaultFailed) as refusal:
        S3Vault("bucket", environment=ENVIRONMENT | {"AWS_ENDPOINT_URL": address})
    assert refusal.value.code == "name"
