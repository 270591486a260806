"""A server of S3's protocol on loopback, for tests; moto does its work.

It does one request at a time, as a store that creates conditionally does.  A test may break an
answer.  Its buckets are in the memory of this process.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from botocore.config import Config
from botocore.session import Session
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from worker.checkpoint.vaults.s3_client import Patience
from worker.checkpoint.vaults.s3_vault import S3Vault

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTONLY",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "eu-west-1",
}
SHORT = Patience(connect_s=2.0, silent_s=30.0, tries=2)  # this machine may be busy
_NUMBER = itertools.count()  # all servers of a process have the same buckets
Answer = Callable[[], Iterable[bytes]]


class S3Server:
    """The server; `breaks` may do something else with a request.

    Attributes:
        breaks: takes method, path with query, the answer and the WSGI start; gives the body.
        requests: (method, path with query) of all so far.
        address: of the server.
    """

    def __init__(self) -> None:
        self.breaks: Callable[[str, str, Answer, Any], Iterable[bytes]] | None = None
        self.requests: list[tuple[str, str]] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = ENVIRONMENT | {"AWS_ENDPOINT_URL": self.address}

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @cached_property
    def client(self) -> Any:
        """A client of the tests' own."""
        return Session().create_client(
            "s3",
            region_name="eu-west-1",
            endpoint_url=self.address,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(proxies={}),
        )

    def bucket(self) -> str:
        """A new empty bucket."""
        name = f"bucket-{next(_NUMBER)}"
        self.client.create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        return name

    def vault(self, bucket: str, prefix: str = "", **others: str) -> S3Vault:
        """A vault in a bucket; further variables of the environment by name."""
        return S3Vault(bucket, prefix, environment=self.environment | others, patience=SHORT)

    def _serve(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING")
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        with self._lock:
            self.requests.append((method, path))

        def answer() -> Iterable[bytes]:
            with self._lock:
                return list(self._app(environ, start))

        return answer() if self.breaks is None else self.breaks(method, path, answer, start)


def refusal(start: Any, status: str, code: str, words: str = "") -> Iterable[bytes]:
    """An error as S3 answers it."""
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>{words}</Message></Error>".encode()]


def alone(monkeypatch: Any) -> None:
    """Let a client use what a test gives it, and nothing else of this machine."""
    names = ("AWS_PROFILE", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    for name in (*names, "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


class _Quiet(MotoRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass

    def connection_dropped(self, *_: Any) -> None:
        self.close_connection = True  # a test raises ConnectionAbortedError for that
