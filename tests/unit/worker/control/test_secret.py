"""worker/control/secret.py: both ends prove that they know the secret, and neither says it."""

from __future__ import annotations

import pytest

from worker.control.secret import HELLO_BYTES, admitted, hello, is_store, new_nonce, store_key

KEY = store_key("token")
CHALLENGE, NONCE = new_nonce(), new_nonce()


def test_who_knows_the_secret_is_let_in_and_is_told_that_the_store_knows_it_too():
    said = hello(KEY, 3, CHALLENGE, NONCE)
    assert len(said) == HELLO_BYTES
    epoch, proof = admitted(KEY, CHALLENGE, said)
    assert epoch == 3
    assert is_store(KEY, 3, CHALLENGE, NONCE, proof)


def test_the_token_is_in_nothing_that_is_sent():
    assert b"token" not in bytes.fromhex(KEY) + hello(KEY, 3, CHALLENGE, NONCE)
    assert store_key("token") != store_key("token2")


@pytest.mark.parametrize("at", [0, 7, 8, 39, 40, HELLO_BYTES - 1])
def test_a_hello_with_any_byte_changed_is_not_let_in(at):
    said = bytearray(hello(KEY, 3, CHALLENGE, NONCE))
    said[at] ^= 1
    assert admitted(KEY, CHALLENGE, bytes(said)) is None


def test_a_hello_to_another_challenge_or_of_another_job_is_not_let_in():
    assert admitted(KEY, new_nonce(), hello(KEY, 3, CHALLENGE, NONCE)) is None
    assert admitted(KEY, CHALLENGE, hello(store_key("other"), 3, CHALLENGE, NONCE)) is None


def test_a_clients_proof_is_not_that_of_a_store():
    proof = hello(KEY, 3, CHALLENGE, NONCE)[40:]
    assert not is_store(KEY, 3, CHALLENGE, NONCE, proof)
    _, given = admitted(KEY, CHALLENGE, hello(KEY, 4, CHALLENGE, NONCE))
    assert not is_store(KEY, 3, CHALLENGE, NONCE, given)
