"""Read an object that a manifest names.

Invariant: one that is gone or cut is damaged, as one with other bytes is; only a store that fails
is tried again.
"""

from __future__ import annotations

from worker.checkpoint.manifest import Damaged
from worker.checkpoint.vaults.vault import Vault, VaultFailed


def read_saved(vault: Vault, name: str, start: int, stop: int) -> bytes:
    """The bytes `[start, stop)` of an object.

    Raises:
        Damaged: the object is missing, or ends before `stop`.
        VaultFailed: the store fails.
    """
    try:
        return vault.read(name, start, stop)
    except VaultFailed as error:
        if error.code == "missing":
            raise damaged(name, "is missing") from None
        if error.code == "cut":
            raise damaged(name, f"ends before byte {stop:,}") from None
        raise


def damaged(name: str, fault: str) -> Damaged:
    """The error of an object with a fault: what is found, and what to do."""
    return Damaged(name, f"{name} {fault}; go on from another checkpoint")
