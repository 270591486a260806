"""Whether all ranks that write the final weights see one and the same folder.

Ranks of one machine compare the folder's identity; others look for a file that rank 0 has made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import torch

from worker.weights.final_weights import Ranks

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the kernel, anew with each start
_POSITIVE = 2**62


def all_see(folder: Path, rank: int, writes: bool, ranks: Ranks) -> bool:
    """Whether every rank that writes into `folder` sees there what rank 0 sees.

    A collective of all ranks of the plan.  Where rank 0 cannot write now, and the ranks are on
    several machines, the answer is no.

    Args:
        folder: as all ranks name it.
        rank: of this process.
        writes: whether it will write; rank 0 does.
        ranks: of the plan.
    """
    table = torch.zeros(ranks.size + 1, dtype=torch.int64)
    number = _make(folder) if rank == 0 else 0
    if writes:
        table[rank] = _identity(folder)
    table[-1] = number
    ranks.all_reduce_(table, "sum")
    identities, number = set(table[:-1].tolist()) - {0}, int(table[-1])
    is_missing = writes and not (number and _is_there(_file(folder, number)))
    missing = torch.tensor([int(is_missing)])
    ranks.all_reduce_(missing, "sum")
    if rank == 0 and number:
        with contextlib.suppress(OSError):
            _file(folder, number).unlink(missing_ok=True)
    return len(identities) == 1 or not int(missing)


def _identity(folder: Path) -> int:
    """A number that two folders of one running machine share only if they are one, above 0."""
    there = next((path for path in (folder, *folder.parents) if _is_there(path)), Path("/"))
    with contextlib.suppress(OSError):
        stat, boot = there.stat(), BOOT_ID.read_text(encoding="ascii")
        said = f"{boot} {stat.st_dev} {stat.st_ino}".encode()
        return 1 + int.from_bytes(hashlib.blake2b(said, digest_size=7).digest(), "big")
    return 1 + secrets.randbelow(_POSITIVE)  # like no other


def _is_there(path: Path) -> bool:
    """Whether a path can be seen."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _make(folder: Path) -> int:
    """Make the file that the others look for; 0 if that cannot be."""
    number = 1 + secrets.randbelow(_POSITIVE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(_file(folder, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except OSError:
        return 0
    return number


def _file(folder: Path, number: int) -> Path:
    return folder / f".seen-by-all-{number:x}"
