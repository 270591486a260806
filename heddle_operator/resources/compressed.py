"""JSON in a ConfigMap's `binaryData`: compressed, and read back within bounds.

Anybody may write a ConfigMap, and a few bytes can become gigabytes.
Source: Kubernetes (binaryData is base64; a ConfigMap holds at most 1 MiB).
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from worker.columns import compressed

EXPANDED_MAX_BYTES = 16 << 20  # 100,000 ranks have about 12 MiB
_GZIP = 31  # window bits of zlib's own documentation


def to_binary(data: object) -> str:
    """Plain data as text of `binaryData`."""
    return base64.b64encode(compressed(data)).decode()


def of_binary(text: str) -> Any:
    """The plain data in a text of `binaryData`.

    Raises:
        ValueError: it is no gzip of JSON, or longer than any that is written.
    """
    reader = zlib.decompressobj(_GZIP)
    try:
        held = reader.decompress(base64.b64decode(text), EXPANDED_MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"it is no gzip: {error}") from None
    if reader.unconsumed_tail:
        raise ValueError(f"it has more than {EXPANDED_MAX_BYTES >> 20} MiB")
    return json.loads(held)
