"""Open the vault that a path names; the one place that knows every kind of vault."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from worker.checkpoint.folder_vault import FolderVault
from worker.checkpoint.vault import Vault, VaultFailed


def open_vault(path: str) -> Vault:
    """The vault at a folder, or at a URL; nothing is read or made yet.

    Raises:
        VaultFailed: no vault has such a path (code `scheme`).
    """
    folder = folder_of(path)
    if folder is None:
        # The rest of a URL may hold a password.
        scheme = path.partition("://")[0]
        raise VaultFailed(
            f"checkpoints cannot be kept at {scheme}://; give a folder, or file:///FOLDER", "scheme"
        )
    return FolderVault(folder)


def folder_of(path: str) -> Path | None:
    """The folder that a path names; None: it is a URL of something else.

    Raises:
        VaultFailed: the path is empty (code `name`).
    """
    if not path.strip():
        raise VaultFailed("the path of the checkpoints is empty; give a folder", "name")
    scheme, is_url, rest = path.partition("://")
    if not is_url:
        return Path(path)
    is_local = scheme.lower() == "file" and rest.startswith("/")
    return Path(unquote(rest)) if is_local else None
