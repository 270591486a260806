"""Access to a store: both ends prove that they know the epoch's secret, and neither says it.

An agent derives a key from its job's token for its store and its ranks; each epoch has a secret of
its own, so that a connection of one epoch reaches nothing of another.
Source: challenge and response with HMAC-SHA256 (RFC 2104), in both directions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
EPOCH_BYTES = 8
HELLO_BYTES = EPOCH_BYTES + NONCE_BYTES + PROOF_BYTES  # what a client says first


def store_key(token: str) -> str:
    """Knowledge of a job's stores and ranks about its token."""
    return hmac.digest(token.encode(), b"stores", "sha256").hex()


def new_nonce() -> bytes:
    """A number that was never used before."""
    return secrets.token_bytes(NONCE_BYTES)


def hello(key: str, epoch: int, challenge: bytes, nonce: bytes) -> bytes:
    """A client's answer to a store's challenge: its epoch, a challenge in turn, its proof."""
    number = epoch.to_bytes(EPOCH_BYTES, "big")
    return number + nonce + _proof(key, b"client", number, challenge, nonce)


def admitted(key: str, challenge: bytes, said: bytes) -> tuple[int, bytes] | None:
    """Judgement of a store on a client's answer.

    Returns:
        The epoch that the client may talk about and the store's proof; None: it knows no secret.
    """
    number, nonce = said[:EPOCH_BYTES], said[EPOCH_BYTES : EPOCH_BYTES + NONCE_BYTES]
    proof = said[EPOCH_BYTES + NONCE_BYTES :]
    if not hmac.compare_digest(proof, _proof(key, b"client", number, challenge, nonce)):
        return None
    return int.from_bytes(number, "big"), _proof(key, b"store", number, challenge, nonce)


def is_store(key: str, epoch: int, challenge: bytes, nonce: bytes, proof: bytes) -> bool:
    """Whether the other end is a store of this job."""
    number = epoch.to_bytes(EPOCH_BYTES, "big")
    return hmac.compare_digest(proof, _proof(key, b"store", number, challenge, nonce))


def _proof(key: str, side: bytes, number: bytes, challenge: bytes, nonce: bytes) -> bytes:
    secret = hmac.digest(bytes.fromhex(key), b"epoch" + number, "sha256")
    return hmac.digest(secret, side + challenge + nonce, "sha256")
