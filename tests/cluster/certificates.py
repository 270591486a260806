"""A certificate authority for one cluster, made with openssl in milliseconds.

Keys are elliptic (P-256): an RSA key takes as long as starting etcd.
"""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterFailed

_DAYS = "365"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterFailed(f"openssl {arguments[0]}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and the certificate that says whose it is."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates; everything is in `folder`."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Make a new authority in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        # Without a configuration of ours openssl would add the distribution's extensions.
        (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = dn\n[dn]\n")
        authority = cls(folder)
        authority._request("ca", "/CN=heddle-test", "basicConstraints=critical,CA:TRUE", ())
        return authority

    def identity(self, name: str) -> Identity:
        """Where the key of that name lies, with its certificate or public key."""
        return Identity(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    def issue(self, name: str, subject: str, also: str = "") -> Identity:
        """A certificate for `subject`, such as /O=system:nodes/CN=system:node:n1.

        Args:
            also: alternative names, such as `DNS:localhost,IP:127.0.0.1`.
        """
        extension = f"subjectAltName={also}" if also else "basicConstraints=critical,CA:FALSE"
        signed = ("-CA", self.certificate, "-CAkey", self.key)
        return self._request(name, subject, extension, signed)

    def make_key_pair(self, name: str) -> Identity:
        """A bare key pair, the public key in the certificate's place: for service accounts."""
        pair = self.identity(name)
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pair.key)
        _openssl("ec", "-in", pair.key, "-pubout", "-out", pair.certificate)
        return pair

    def _request(
        self, name: str, subject: str, extension: str, signed: tuple[str | Path, ...]
    ) -> Identity:
        identity = self.identity(name)
        config = ("-config", self.folder / "openssl.cnf", "-subj", subject)
        to = ("-keyout", identity.key, "-out", identity.certificate)
        lasting = ("-x509", "-days", _DAYS, "-addext", extension)
        _openssl("req", *lasting, *_KEY, *config, *signed, *to)
        return identity


def encoded(path: Path) -> str:
    """A file in base64, as kubeconfig files hold it."""
    return base64.b64encode(path.read_bytes()).decode()
