"""checkpoint/vaults/s3_vault.py: a real server, which loses answers and breaks off."""

from __future__ import annotations

import logging

import pytest
from moto.core import enable_iam_authentication

from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from tests.builders import MOE, tiled
from tests.checkpoints import save, state
from tests.s3_server import S3Server, alone, refusal
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.load import Checkpoint, newest
from worker.checkpoint.vaults import s3_vault
from worker.checkpoint.vaults.open_vault import open_vault
from worker.checkpoint.vaults.s3_client import Patience
from worker.checkpoint.vaults.s3_vault import MARK, S3Vault
from worker.checkpoint.vaults.vault import VaultFailed

NAME = "step-7.e2/rank-0.safetensors"
PART_BYTES = 5 << 20  # the least that S3 takes
DAY_S = 86_400.0
AGE_S = 1e10  # older than any upload: the server says that all were begun in 2010
ONCE = Patience(tries=1)


@pytest.fixture(scope="module")
def server():
    one = S3Server()
    yield one
    one.stop()


@pytest.fixture
def s3(server, monkeypatch):
    alone(monkeypatch)
    yield server
    server.breaks = None


def in_parts(s3, bucket, prefix=""):
    return S3Vault(bucket, prefix, environment=s3.environment, part_bytes=PART_BYTES)


def pending(s3, bucket):
    return [
        one["Key"] for one in s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
    ]


def failure(call, *arguments):
    with pytest.raises(VaultFailed) as refusal:
        call(*arguments)
    assert "\n" not in str(refusal.value)
    return refusal.value


def chunks(number, size=1 << 20):
    for index in range(number):
        yield memoryview(bytes([index]) * size)


@pytest.mark.slow
@pytest.mark.parametrize("of_chunk", [1, 12])
def test_a_large_object_is_uploaded_in_parts_as_its_chunks_come(s3, of_chunk):
    bucket, taken, sent = s3.bucket(), [], []
    content = b"".join(chunks(12))

    def chunk_by_chunk():
        for start in range(0, 12, of_chunk):
            taken.append(start + of_chunk)
            yield memoryview(content)[start << 20 : (start + of_chunk) << 20]

    def note(method, path, answer, start):
        if "partNumber" in path:
            sent.append(taken[-1])
        return answer()

    s3.breaks = note
    vault = in_parts(s3, bucket)
    vault.put(NAME, chunk_by_chunk(), len(content))
    assert sent == ([6, 11, 12] if of_chunk == 1 else [12] * 3)  # none is read far ahead
    found = s3.client.head_object(Bucket=bucket, Key=NAME, ChecksumMode="ENABLED")
    assert (found["ETag"][-3:], "ChecksumCRC32" in found) == ('-3"', True)
    assert vault.read(NAME) == content
    assert vault.read(NAME, PART_BYTES - 1, PART_BYTES + 1) == b"\4\5"
    assert pending(s3, bucket) == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["breaks off", "is short", "is long"])
def test_an_upload_that_ends_otherwise_than_announced_is_aborted_and_never_seen(s3, end):
    bucket = s3.bucket()
    vault = in_parts(s3, bucket)

    def broken():
        yield from chunks(11)
        if end == "breaks off":
            assert pending(s3, bucket) == [NAME]
            assert vault.names() == ()
            raise KeyboardInterrupt
        if end == "is long":
            yield from chunks(2)

    with pytest.raises(KeyboardInterrupt if end == "breaks off" else VaultFailed) as ended:
        vault.put(NAME, broken(), 12 << 20)
    assert getattr(ended.value, "code", "cut") == "cut"
    assert vault.names() == ()
    assert pending(s3, bucket) == []


@pytest.mark.slow
@pytest.mark.parametrize("call", ["partNumber=2", "uploadId"])
def test_an_upload_that_the_store_refuses_is_aborted(s3, call):
    bucket = s3.bucket()

    def refuse(method, path, answer, start):
        is_it = call in path and (method == "POST" or "partNumber" in call)
        return refusal(start, "507 Full", "StorageFull") if is_it else answer()

    s3.breaks = refuse
    assert failure(in_parts(s3, bucket).put, NAME, chunks(11), 11 << 20).code == "full"
    assert pending(s3, bucket) == []
    assert in_parts(s3, bucket).names() == ()


def test_uploads_that_were_cut_off_are_aborted_once_they_are_old(s3):
    bucket = s3.bucket()
    vault = s3.vault(bucket, "runs/a")
    for key in ("runs/a/step-1.e1/rank-0", "runs/b/step-1.e1/rank-0"):
        s3.client.create_multipart_upload(Bucket=bucket, Key=key)
    vault.tidy(AGE_S)
    assert len(pending(s3, bucket)) == 2
    vault.tidy(DAY_S)
    assert pending(s3, bucket) == ["runs/b/step-1.e1/rank-0"]


def test_what_another_removed_meanwhile_is_gone(s3):
    bucket = s3.bucket()
    vault = s3.vault(bucket)
    s3.client.create_multipart_upload(Bucket=bucket, Key=NAME)

    def gone(method, path, answer, start):
        code = "NoSuchUpload" if "uploadId" in path else "NoSuchKey"
        return refusal(start, "404 Gone", code) if method == "DELETE" else answer()

    s3.breaks = gone
    vault.remove(NAME)
    vault.tidy(DAY_S)
    s3.breaks = lambda method, path, answer, start: refusal(start, "404 Gone", "NoSuchBucket")
    assert failure(vault.remove, NAME).code == "missing"


@pytest.mark.slow
def test_a_part_grows_with_the_object_so_that_the_parts_are_not_too_many(s3, monkeypatch):
    monkeypatch.setattr(s3_vault, "MAX_PARTS", 2)
    bucket = s3.bucket()
    in_parts(s3, bucket).put(NAME, chunks(11), 11 << 20)
    assert s3.client.head_object(Bucket=bucket, Key=NAME)["ETag"].endswith('-2"')


def test_a_creation_whose_answer_is_lost_is_this_ones(s3):
    vault, lost = s3.vault(s3.bucket()), []

    def lose(method, path, answer, start):
        body = answer()
        if method == "PUT" and path.endswith("/manifest.json") and not lost:
            lost.append(path)
            raise ConnectionAbortedError  # the connection ends without a word
        return body

    s3.breaks = lose
    assert vault.commit("manifest.json", b"mine")
    assert lost
    assert not vault.commit("manifest.json", b"mine")
    lost.clear()
    assert not vault.commit("manifest.json", b"another's")
    assert vault.read("manifest.json") == b"mine"


def test_a_creation_in_conflict_with_another_is_tried_again_and_then_told(s3, monkeypatch):
    monkeypatch.setattr(s3_vault, "CONFLICT_S", 0.0)
    vault, conflicts = s3.vault(s3.bucket()), [3]

    def conflict(method, path, answer, start):
        if method == "PUT" and path.endswith(".json") and conflicts[0]:
            conflicts[0] -= 1
            return refusal(start, "409 Conflict", "ConditionalRequestConflict")
        return answer()

    s3.breaks = conflict
    assert vault.commit("a.json", b"mine")
    conflicts[0] = 100
    assert failure(vault.commit, "b.json", b"mine").code == "other"
    assert vault.names() == ("a.json",)


def test_a_store_that_replaces_what_is_to_be_created_is_refused(s3):
    vault = s3.vault(s3.bucket(), "runs")

    def forget(method, path, answer, start):
        if method == "PUT":
            start("200 OK", [("ETag", '"x"'), ("Content-Length", "0")])
            return []
        return answer()

    s3.breaks = forget
    assert failure(vault.commit, "manifest.json", b"mine").code == "refused"
    s3.breaks = None
    assert vault.names() == ()
    assert vault.commit("manifest.json", b"mine")
    before = len(s3.requests)
    assert vault.commit("other.json", b"mine")
    assert len(s3.requests) == before + 1  # the store has shown it
    assert vault.names() == ("manifest.json", "other.json")
    assert MARK not in vault.names()


def test_a_store_that_is_busy_for_a_moment_is_not_taken_for_one_that_replaces(s3):
    bucket, marks = s3.bucket(), []
    assert s3.vault(bucket).commit("a.json", b"mine")

    def busy(method, path, answer, start):
        if method == "PUT" and path.endswith(MARK):
            marks.append(path)
            if len(marks) % 2:  # each first try
                return refusal(start, "503 Slow Down", "SlowDown")
        return answer()

    s3.breaks = busy
    assert s3.vault(bucket).commit("b.json", b"mine")
    assert marks


def test_a_body_that_breaks_off_is_asked_for_again(s3):
    vault, breaks = s3.vault(s3.bucket()), [1]
    vault.put(NAME, [b"abcdef"], 6)

    def cut(method, path, answer, start):
        if method == "GET" and breaks[0]:
            breaks[0] -= 1
            start("206 Partial Content", [("Content-Length", "4")])
            return [b"ab"]
        return answer()

    s3.breaks = cut
    assert vault.read(NAME, 1, 5) == b"bcde"
    breaks[0] = 100
    assert failure(vault.read, NAME, 1, 5).code == "unreachable"


def test_a_store_without_ranges_is_refused(s3):
    vault = s3.vault(s3.bucket())
    vault.put(NAME, [b"abcdef"], 6)

    def all_of_it(method, path, answer, start):
        if method != "GET":
            return answer()
        start("200 OK", [("Content-Length", "6")])
        return [b"abcdef"]

    s3.breaks = all_of_it
    assert failure(vault.read, NAME, 1, 5).code == "refused"


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        ("403 Forbidden", "AccessDenied", "refused"),
        ("400 Bad Request", "ExpiredToken", "credentials"),
        ("501 Not Implemented", "NotImplemented", "refused"),
        ("503 Slow Down", "SlowDown", "unreachable"),
        ("507 Insufficient Storage", "XMinioStorageFull", "full"),
        ("400 Bad Request", "Strange", "other"),
    ],
)
def test_what_the_store_answers_has_a_code_and_none_of_its_words(s3, status, code, why):
    vault = S3Vault(s3.bucket(), environment=s3.environment, patience=ONCE)
    s3.breaks = lambda method, path, answer, start: refusal(start, status, code, "word " * 9)
    for call in (
        lambda: vault.put(NAME, [b"x"], 1),
        lambda: vault.commit(NAME, b"x"),
        lambda: vault.read(NAME),
        lambda: vault.names(),
        lambda: vault.remove(NAME),
        lambda: vault.tidy(0.0),
    ):
        told = failure(call)
        assert told.code == why
        assert code in str(told)
        assert "word" not in str(told)


def test_an_answer_that_is_cut_is_told_as_one_sentence(s3):
    vault = S3Vault(s3.bucket(), environment=s3.environment, patience=ONCE)

    def page(method, path, answer, start):
        start("200 OK", [("Content-Type", "application/xml")])
        return [b"<ListBucketResult>\n<Na"]

    s3.breaks = page
    assert failure(vault.names).code == "unreachable"


def test_a_bucket_that_is_not_there_is_missing(s3):
    told = failure(s3.vault("no-such-bucket").put, NAME, [b"x"], 1)
    assert told.code == "missing"
    assert "no-such-bucket" in str(told)


@pytest.mark.slow
def test_wrong_credentials_are_refused_and_nothing_of_them_is_said(s3, caplog):
    caplog.set_level(logging.DEBUG)
    bucket = s3.bucket()
    wrong = {
        "AWS_ACCESS_KEY_ID": "AKIAOTHERTESTKEY",
        "AWS_SECRET_ACCESS_KEY": "wrong-secret-of-a-test",
        "AWS_SESSION_TOKEN": "token-of-a-test",
        "AWS_ENDPOINT_URL": s3.address.replace("://", "://name:word-in-address@"),
    }
    vault = S3Vault(bucket, environment=s3.environment | wrong)
    with enable_iam_authentication():
        told = [
            failure(vault.put, NAME, [b"x"], 1),
            failure(vault.commit, NAME, b"x"),
            failure(vault.names),
        ]
    # the server logs what it gets
    lines = "\n".join(one.getMessage() for one in caplog.records if "moto" not in one.name)
    assert NAME in lines  # the client logs, too
    for error in told:
        assert error.code == "credentials"
        assert error.__cause__ is None
        assert error.__suppress_context__
        for secret in (*list(wrong.values())[:3], "word-in-address"):
            assert secret not in str(error)
    for secret in (wrong["AWS_SECRET_ACCESS_KEY"], wrong["AWS_SESSION_TOKEN"], "word-in-address"):
        assert secret not in lines


@pytest.mark.parametrize("lacks", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_without_credentials_no_store_is_asked(s3, lacks):
    vault = s3.vault(s3.bucket(), **{lacks: ""})
    before = len(s3.requests)
    assert failure(vault.names).code == "credentials"
    assert len(s3.requests) == before


@pytest.mark.parametrize(
    "rest", ["", "/a", "a:hidden@host/a", "bucket/?hidden", "bucket/../hidden"]
)
def test_a_path_of_another_form_is_refused_and_not_said(rest):
    told = failure(open_vault, f"s3://{rest}")
    assert told.code == "name"
    assert "hidden" not in str(told)


def test_the_address_of_s3_alone_comes_before_that_of_all_services(s3):
    address = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": s3.address}
    assert s3.vault(s3.bucket(), **address).names() == ()


@pytest.mark.slow
def test_a_checkpoint_is_saved_in_s3_by_its_path_and_read_as_it_was(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    vault = open_vault(f"s3://{s3.bucket()}/runs/a/")
    truth, attempt = state(MOE, 10), Attempt(epoch=1, step=10)
    assert save(vault, attempt, tiled("2x3"), truth) is not None
    found = newest(vault)
    assert found.attempt == attempt
    checkpoint = Checkpoint(vault, found.attempt, found.manifest, MOE)
    for tensor in model_tensors(MOE):
        box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        parts = zip(checkpoint.read(box), truth.read(box), strict=True)
        assert all(one.equal(other) for one, other in parts)
