"""The file that a training can be resumed from: its digest, then the state.

It is read without torch, so that a wrong one is refused at once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from planner.errors import FIELD, InvalidPolicy
from planner.wording import reason_of

CHECKPOINT = "checkpoint.pt"
DIGEST_BYTES = 16  # of the state, at the beginning of the file


def read_checkpoint(folder: Path) -> bytes:
    """The state in a folder, as torch writes it.

    Raises:
        InvalidPolicy: there is none, or it is damaged.
    """
    try:
        content = (folder / CHECKPOINT).read_bytes()
    except OSError as error:
        raise InvalidPolicy(
            f"there is no training to resume in {folder}: {CHECKPOINT}: {reason_of(error)}; "
            f"leave {FIELD} out",
            field="resume",
            code="Missing",
        ) from None
    digest, state = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if digest != digest_of(state):
        raise InvalidPolicy(
            f"the training in {folder} is damaged: {CHECKPOINT} has another digest; "
            f"leave {FIELD} out",
            field="resume",
            code="Damaged",
        )
    return state


def digest_of(state: bytes) -> bytes:
    """What the file begins with."""
    return hashlib.blake2b(state, digest_size=DIGEST_BYTES).digest()
