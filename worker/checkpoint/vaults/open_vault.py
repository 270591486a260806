"""Open the vault that a path names; the one place that knows every kind of vault."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import Vault, VaultFailed


def open_vault(path: str) -> Vault:
    """The vault at a folder, or at a URL; nothing is read or made yet.

    Raises:
        VaultFailed: no vault has such a path (code `scheme` or `name`).
    """
    folder = folder_of(path)
    if folder is not None:
        return FolderVault(folder)
    # The rest of a URL may hold a password.
    scheme, _, rest = path.partition("://")
    if scheme.lower() == "s3":
        # Its client takes a third of a second to import, and not every installation has it.
        from worker.checkpoint.vaults.s3_vault import S3Vault

        bucket, _, prefix = rest.partition("/")
        return S3Vault(bucket, prefix.strip("/"))
    raise VaultFailed(
        f"checkpoints cannot be kept at {scheme}://; give a folder, file:///FOLDER or "
        "s3://BUCKET/PREFIX",
        "scheme",
    )


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
