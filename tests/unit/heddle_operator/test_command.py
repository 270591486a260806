"""`heddle operator run`: what is wrong with its options is one sentence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from heddle.main import heddle
from heddle_operator.apis.errors import InvalidJob


def refused(*arguments):
    done = CliRunner().invoke(heddle, ["operator", "run", *arguments], standalone_mode=False)
    assert done.exception is not None
    return done.exception


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "Unreadable"),
        ("a: [", "Unreadable"),
        (b"\xff\xfe", "Unreadable"),
        ("- a list", "Malformed"),
        ("[]", "Malformed"),
        ("spec: {containers: {name: worker}}", "Malformed"),
        ("spec: {tolerations: {key: spot}}", "Malformed"),
        ("metadata: x", "Malformed"),
    ],
    ids=[
        "missing",
        "torn",
        "no text",
        "a list",
        "an empty list",
        "rows",
        "tolerations",
        "metadata",
    ],
)
def test_a_worker_template_that_cannot_be_used_is_named(tmp_path, text, code):
    path = tmp_path / "template.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for option in ("--worker-template", "--worker-base"):
        error = refused(option, str(path))
        assert (type(error), error.code) == (InvalidJob, code)


def test_what_nobody_can_allow_is_named_with_what_one_can():
    error = refused("--worker-allow", "hostpath")
    assert (error.code, error.field) == ("Unknown", "worker_allow")


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--worker-per-gpu", "memory", "Malformed"),
        ("--worker-per-gpu", "nvidia.com/gpu=1", "Unsupported"),
        ("--worker-per-gpu", "=8", "Malformed"),
        ("--worker-per-gpu", "memory=lots", "Malformed"),
        ("--worker-per-gpu", "memory=-1Gi", "OutOfRange"),
        ("--worker-shm-per-gpu", "-8Gi", "OutOfRange"),
        ("--worker-shm-per-gpu", "lots", "Malformed"),
        ("--worker-host-ports", "8470", "OutOfRange"),
        ("--worker-host-ports", "8470-70000", "OutOfRange"),
    ],
)
def test_a_quantity_that_is_none_is_named_with_its_option(option, value, code):
    error = refused(option, value)
    assert (error.code, error.field) == (code, option)


@pytest.mark.parametrize("name", ["Foo_Bar", "", "a" * 64, "-a"])
def test_a_namespace_that_cannot_be_is_refused_before_anything_is_asked(name):
    assert "is no name of a namespace" in str(refused("--namespace", name))


@pytest.mark.parametrize(
    "arguments",
    [("--lease-seconds", "1"), ("--log-format", "xml"), ("--port", "-1"), ("--port", "99999")],
)
def test_an_option_out_of_its_range_is_refused(arguments):
    done = CliRunner().invoke(heddle, ["operator", "run", *arguments])
    assert done.exit_code == 2
    assert "Invalid value for" in done.output
