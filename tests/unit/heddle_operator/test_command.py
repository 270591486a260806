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
    ("text", "words"),
    [
        (None, "cannot be read: "),
        ("a: [", "cannot be read: "),
        (b"\xff\xfe", "cannot be read: "),
        ("- a list", "must hold a mapping with metadata and spec"),
        ("[]", "must hold a mapping with metadata and spec"),
    ],
    ids=["missing", "torn", "no text", "a list", "an empty list"],
)
def test_a_worker_template_that_cannot_be_used_is_named(tmp_path, text, words):
    path = tmp_path / "template.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for option in ("--worker-template", "--worker-base"):
        error = refused(option, str(path))
        assert isinstance(error, InvalidJob)
        assert f"worker template {path} {words}" in str(error)
        assert "\n" not in str(error)


def test_what_nobody_can_allow_is_named_with_what_one_can():
    error = refused("--worker-allow", "hostpath")
    assert "--worker-allow hostpath (did you mean 'hostPath'?): one can allow " in str(error)
    assert " hostPath, " in str(error)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--worker-per-gpu", "memory", "--worker-per-gpu memory: it is not NAME=QUANTITY"),
        ("--worker-per-gpu", "nvidia.com/gpu=1", "--worker-per-gpu nvidia.com/gpu=1: the operator"),
        ("--worker-per-gpu", "=8", "--worker-per-gpu =8: it is not NAME=QUANTITY"),
        ("--worker-per-gpu", "memory=lots", "--worker-per-gpu: 'lots' is no quantity"),
        ("--worker-per-gpu", "memory=-1Gi", "--worker-per-gpu: '-1Gi' is below 0"),
        ("--worker-shm-per-gpu", "-8Gi", "--worker-shm-per-gpu: '-8Gi' is below 0"),
        ("--worker-shm-per-gpu", "lots", "--worker-shm-per-gpu: 'lots' is no quantity"),
    ],
)
def test_a_quantity_that_is_none_is_named_with_its_option(option, value, words):
    assert str(refused(option, value)).startswith(words)


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
