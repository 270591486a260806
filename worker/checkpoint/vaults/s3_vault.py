"""A vault in a bucket of S3, or of any store that speaks its protocol.

Invariants: a large object is uploaded in parts, and seen once all of them are there; a committed
one is created with `If-None-Match: *`; the silence of a store ends a call, whether it connects,
takes a body or answers; no error holds words of the store or its client: they may be secret.
Source: API reference of Amazon S3 (conditional writes, multipart uploads).
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as NoConnection
from botocore.exceptions import SSLError as NotTrusted
from botocore.parsers import ResponseParserError

from worker.checkpoint.vaults.s3_client import PATIENCE, Patience, client_of, store_of
from worker.checkpoint.vaults.vault import (
    NAME,
    Facts,
    VaultFailed,
    Why,
    check_name,
    parts_of,
    whole,
)
from worker.training_settings import BUCKET

PART_BYTES = 16 << 20  # in memory at once; S3 takes parts of 5 MiB to 5 GiB
MAX_PARTS = 10_000  # of one upload, by S3's limits
CONFLICTS = 6  # tries of a creation that the store finds in conflict with another
CONFLICT_S = 0.05  # before the second of them, then doubled
MARK, MARK_BYTES = ".created-once", 16  # an object that no listing shows
_CODE = re.compile(r"[A-Za-z0-9]{1,48}")
_EXISTS, _CONFLICT, _NO_SUCH_RANGE, _PARTIAL = 412, 409, 416, 206
_NOT_TAKEN = {
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
_BY_STATUS: dict[int, Why] = {
    401: "credentials",
    403: "refused",
    404: "missing",
    405: "refused",
    501: "refused",
    507: "full",
    **dict.fromkeys((429, 500, 502, 503, 504), "unreachable"),
}
_SILENT = (HTTPClientError, IncompleteReadError, NoConnection)
_ADVICE: dict[Why, str] = {
    "credentials": "does not take these credentials ({code}); check keys, region and clock",
    "full": "has no room left ({code}); make room, or keep fewer checkpoints",
    "missing": "has no such object ({code})",
    "refused": "does not allow this ({code}); allow these credentials to list, get, put and delete",
    "unreachable": "cannot answer now ({code}); the next save tries anew",
}


class S3Vault:
    """Objects of a bucket below a prefix.

    Address, region and credentials are those of the environment: `AWS_ENDPOINT_URL_S3` or
    `AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.  No file and no machine is asked for others.

    Args:
        bucket: that is there.
        prefix: a path in it; nothing: the whole bucket is the vault's.
        environment: of this process by default.
        part_bytes: of an upload; more where 10,000 parts would not do.
        patience: with a silent store.

    Raises:
        VaultFailed: bucket, prefix or address have another form (`name`).  Each operation: there
            are no credentials (`credentials`), or the store is silent (`unreachable`).
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        environment: Mapping[str, str] = os.environ,
        part_bytes: int = PART_BYTES,
        patience: Patience = PATIENCE,
    ) -> None:
        _check_place(bucket, prefix)
        self._bucket, self._part_bytes, self._patience = bucket, part_bytes, patience
        self._prefix = f"{prefix}/" if prefix else ""
        self._creates_once = False
        self._store = store_of(environment)
        self._environment = environment
        self._made: Any = None
        self._making = threading.Lock()

    def put(self, name: str, chunks: Iterable[bytes | memoryview], num_bytes: int) -> None:
        """Upload an object, a large one in parts; one that breaks off is aborted."""
        key = self._key(name)
        part_bytes = max(self._part_bytes, -(-num_bytes // MAX_PARTS))
        parts = parts_of(whole(chunks, num_bytes, name), part_bytes)
        with self._told(name):
            if num_bytes > part_bytes:
                self._upload(key, parts)
                return
            content = b"".join(parts)  # to their end, which knows their size
            self._client().put_object(Bucket=self._bucket, Key=key, Body=content)

    def commit(self, name: str, content: bytes) -> bool:
        """Create an object with `If-None-Match: *`, once the store has shown that it heeds that."""
        key = self._key(name)
        with self._told(name):
            if not self._creates_once:
                # A try that finds its own content there was heard, so no two have the same.
                tries = [secrets.token_bytes(MARK_BYTES) for _ in range(2)]
                if all(self._create(self._prefix + MARK, content) for content in tries):
                    raise VaultFailed(
                        f"{self._store} replaces an object that is to be created once, so it "
                        "cannot keep checkpoints; use a store with conditional writes",
                        "refused",
                    )
                self._creates_once = True
            return self._create(key, content)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Get an object, or a range of it."""
        key = self._key(name)
        with self._told(name):
            if stop is not None and stop <= start:
                self._client().head_object(Bucket=self._bucket, Key=key)
                return b""
            found = self._get(key, start, stop)
        if stop is not None and len(found) < stop - start:
            raise VaultFailed(f"{self._place(name)} ends before byte {stop}", "cut")
        return found

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Those of a listing."""
        return tuple(sorted(self.facts(prefix)))

    def facts(self, prefix: str = "") -> dict[str, Facts]:
        """List the bucket; objects that no vault names are left out."""
        with self._told(prefix):
            pages = (
                self._client()
                .get_paginator("list_objects_v2")
                .paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            )
            objects = [one for page in pages for one in page.get("Contents", ())]
        found = {
            one["Key"].removeprefix(self._prefix): Facts(
                one["Size"], one["LastModified"].timestamp()
            )
            for one in objects
        }
        return {name: facts for name, facts in found.items() if NAME.fullmatch(name)}

    def remove(self, name: str) -> None:
        """Delete an object."""
        key = self._key(name)
        with self._told(name):
            try:
                self._client().delete_object(Bucket=self._bucket, Key=key)
            except ClientError as error:  # S3 itself says nothing, other stores do
                if _code(error) != "NoSuchKey":
                    raise

    def tidy(self, older_than_s: float) -> None:
        """Abort uploads below the prefix that were begun before that, by the store's clock."""
        with self._told(""):
            pages = (
                self._client()
                .get_paginator("list_multipart_uploads")
                .paginate(Bucket=self._bucket, Prefix=self._prefix)
            )
            for page in pages:
                now = _clock(page)
                for upload in page.get("Uploads", ()):
                    if (now - upload["Initiated"]).total_seconds() > older_than_s:
                        self._abort(upload["Key"], upload["UploadId"])

    def _key(self, name: str) -> str:
        check_name(name)
        return self._prefix + name

    def _client(self) -> Any:
        """The client, made at its first use, as a job trains on where its credentials lack."""
        with self._making:
            if self._made is None:
                self._made = client_of(self._environment, self._patience)
            return self._made

    def _place(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def _upload(self, key: str, parts: Iterable[bytearray]) -> None:
        # What the client does for each part by itself; S3 wants to hear of it beforehand.
        client = self._client()
        sums = client.meta.config.request_checksum_calculation == "when_supported"
        how = {"ChecksumAlgorithm": "CRC32"} if sums else {}
        begun = client.create_multipart_upload(Bucket=self._bucket, Key=key, **how)
        of_upload = {"Bucket": self._bucket, "Key": key, "UploadId": begun["UploadId"]}
        try:
            done = []
            for number, part in enumerate(parts, start=1):
                answer = client.upload_part(PartNumber=number, Body=bytes(part), **of_upload)
                told = {k: v for k, v in answer.items() if k in ("ETag", "ChecksumCRC32")}
                done.append({"PartNumber": number} | told)
            client.complete_multipart_upload(MultipartUpload={"Parts": done}, **of_upload)
        except _SILENT:
            raise  # nobody hears an abort now; `tidy` makes up for it
        except BaseException:
            with suppress(BotoCoreError, ClientError):
                self._abort(key, begun["UploadId"])
            raise

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._client().abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if _code(error) != "NoSuchUpload":  # completed or aborted meanwhile
                raise

    def _create(self, key: str, content: bytes) -> bool:
        """Put an object that is not there; False: it is."""
        for tried in range(CONFLICTS):
            try:
                self._client().put_object(
                    Bucket=self._bucket, Key=key, Body=content, IfNoneMatch="*"
                )
            except ClientError as error:
                if _status(error) == _EXISTS:
                    # The answer to an earlier try may be lost: then the object is this one.
                    was_sent = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                    return was_sent and self._get(key, 0, None) == content
                if _status(error) != _CONFLICT or tried + 1 == CONFLICTS:
                    raise
                time.sleep(CONFLICT_S * 2**tried)
            else:
                break
        return True

    def _get(self, key: str, start: int, stop: int | None) -> bytes:
        """The bytes of a range that are there; a body that breaks off is asked for again."""
        asked = {}
        if (start, stop) != (0, None):
            asked["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        left = self._patience.tries
        while True:
            left -= 1
            try:
                answer = self._client().get_object(Bucket=self._bucket, Key=key, **asked)
            except ClientError as error:
                if _status(error) == _NO_SUCH_RANGE:
                    return b""
                raise
            if asked and answer["ResponseMetadata"]["HTTPStatusCode"] != _PARTIAL:
                answer["Body"].close()
                raise VaultFailed(
                    f"{self._store} gives whole objects for ranges; use a store with ranges",
                    "refused",
                )
            try:
                return bytes(answer["Body"].read())
            except _SILENT:
                answer["Body"].close()
                if left <= 0:
                    raise

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Tell errors of the store as those of a vault, in words that are all of this file."""
        try:
            yield
        except ClientError as error:
            raise self._answered(name, error) from None
        except NotTrusted:
            raise VaultFailed(
                f"{self._store} shows a certificate that is not trusted; name its authority in "
                "AWS_CA_BUNDLE",
                "refused",
            ) from None
        except _SILENT:
            raise VaultFailed(
                f"{self._store} does not answer; {self._place(name)} needs it within "
                f"{self._patience.silent_s:g} s",
                "unreachable",
            ) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise VaultFailed(
                f"{self._place(name)}: the client of S3 fails ({type(error).__name__})", "other"
            ) from None

    def _answered(self, name: str, error: ClientError) -> VaultFailed:
        code, status = _code(error), _status(error)
        if code == "NoSuchBucket":
            return VaultFailed(
                f"{self._store} has no bucket {self._bucket}; make it, or correct the path",
                "missing",
            )
        why = "credentials" if code in _NOT_TAKEN else _BY_STATUS.get(status, "other")
        said = code if _CODE.fullmatch(code) else f"status {status}"
        advice = _ADVICE.get(why, "answers {code}").format(code=said)
        return VaultFailed(f"{self._place(name)}: {self._store} {advice}", why)


def _check_place(bucket: str, prefix: str) -> None:  # what it is may be secret
    if not BUCKET.fullmatch(bucket) or (prefix and not NAME.fullmatch(prefix)):
        raise VaultFailed(
            "a path in S3 has another form than s3://BUCKET/PREFIX; give a bucket of 3 to 63 "
            "lower letters, digits, dots and dashes, and a prefix of plain words",
            "name",
        )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _clock(answer: Mapping[str, Any]) -> datetime:
    """The store's time, else this machine's."""
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(said) if said else datetime.now(UTC)
