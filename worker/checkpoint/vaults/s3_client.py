"""The client of a store that speaks S3's protocol: its address, credentials and patience."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from botocore.config import Config
from botocore.session import Session

from worker.checkpoint.vaults.vault import VaultFailed

REGION = "us-east-1"  # of the signature, where no region is given; other stores take any


class Patience(NamedTuple):
    """How long a silent store is waited for: 48 s by default, with the pauses between tries."""

    connect_s: float = 5.0
    silent_s: float = 15.0  # while it takes a body, or before and within its answer
    tries: int = 3


PATIENCE = Patience()


def _address(environment: Mapping[str, str]) -> str | None:
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None


def store_of(environment: Mapping[str, str]) -> str:
    """The store in words; of an address only host and port, as the rest may hold a password."""
    address = _address(environment)
    if address is None:
        return "Amazon S3"
    found = re.match(r"https?://(?:[^/@]*@)?([\w.-]+|\[[\da-f:]+\])(:\d+)?(?:/|$)", address)
    if found is None:
        raise VaultFailed(
            "AWS_ENDPOINT_URL has another form than http://HOST:PORT or https://HOST; correct it",
            "name",
        )
    return f"the store at {found[1]}{found[2] or ''}"


def client_of(environment: Mapping[str, str], patience: Patience) -> Any:
    """A client of S3; threads may share it.

    Raises:
        VaultFailed: there are no credentials.
    """
    logging.getLogger("botocore").setLevel(logging.INFO)  # its DEBUG lines hold a session's token
    key = environment.get("AWS_ACCESS_KEY_ID")
    secret = environment.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        raise VaultFailed(
            "checkpoints in S3 need credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            "credentials",
        )
    return Session().create_client(
        "s3",
        region_name=environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or REGION,
        endpoint_url=_address(environment),
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=environment.get("AWS_SESSION_TOKEN") or None,
        config=Config(
            connect_timeout=patience.connect_s,
            read_timeout=patience.silent_s,
            retries={"mode": "standard", "total_max_attempts": patience.tries},
        ),
    )
