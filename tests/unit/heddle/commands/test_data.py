"""`heddle data` makes and shows datasets, and says what does not go together."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from heddle.commands.data import data
from planner.errors import InvalidRequest


def run(*arguments):
    return CliRunner().invoke(data, [str(argument) for argument in arguments])


def test_what_was_prepared_is_shown(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "one"}\n')
    made = run(
        "prepare",
        "--input",
        tmp_path / "x.jsonl",
        "--text-key",
        "body",
        "--output-path",
        tmp_path / "corpus",
        "--eod",
        "none",
    )
    assert made.exit_code == 0, made.output
    assert "1 document, 3 bytes of text, 3 tokens of a vocabulary of 256" in made.output
    shown = run("show", tmp_path / "corpus", "--output", "json")
    found = json.loads(shown.output)
    assert (found["documents"], found["tokens"]) == (1, 3)
    assert found["beginnings"] == [{"tokens": 3, "first": [111, 110, 101], "text": "one"}]
    assert "one" in run("show", tmp_path / "corpus").output


def test_files_of_other_kinds_are_left_out_with_a_word(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.csv", "c.CSV", "README", ".hidden"):
        (texts / name).write_text("one")
    made = run("prepare", "--input", texts, "--output-path", tmp_path / "corpus")
    assert "Left out 3 files of other kinds (.csv, no suffix)" in made.stderr


def test_programs_read_what_was_prepared_and_left_out(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.csv"):
        (tmp_path / "texts" / name).write_text("one")
    prefix = tmp_path / "corpus"
    made = run("prepare", "--input", tmp_path / "texts", "--output-path", prefix, "-o", "json")
    assert json.loads(made.stdout) == {
        "prefix": str(prefix),
        "documents": 1,
        "skipped": 0,
        "text_bytes": 3,
        "tokens": 4,
        "vocab": 256,
        "resumed": 0,
        "first_skipped": "",
        "unkept": "",
        "left_out": {".csv": 1},
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "give exactly one of --input and --builtin"),
        (("--builtin", "text", "--input", "a"), "give exactly one of --input and --builtin"),
        (("--input", "a", "--text-key", ""), "a key of records is empty"),
        (("--input", "a", "--output-path", "a.bin"), "leave out .bin"),
        (("--input", "a", "--prompt-key", "q"), "give both of --prompt-key and --completion-key"),
        (
            ("--input", "a", "--text-key", "t", "--prompt-key", "q", "--completion-key", "r"),
            "give --text-key, or --prompt-key and --completion-key",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given, sentence):
    done = run("prepare", "--output-path", "x", *given)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


@pytest.mark.parametrize("empty", ["--input", "--output-path", "--tokenizer", "--cache"])
def test_an_empty_path_is_not_the_working_folder(empty, tmp_path):
    given = {"--input": str(tmp_path), "--output-path": str(tmp_path / "x")} | {empty: ""}
    done = run("prepare", *(word for pair in given.items() for word in pair))
    assert isinstance(done.exception, InvalidRequest)
    assert (done.exception.field, done.exception.code) == (empty, "Missing")


def test_the_folder_of_a_tokenizer_is_taken_as_by_prepare(tmp_path):
    Tokenizer(WordLevel({"a": 0, "</s>": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("a")
    prefix, tokenizer = tmp_path / "pair", ("--tokenizer", tmp_path)
    made = run("prepare", "--input", tmp_path / "text.txt", "--output-path", prefix, *tokenizer)
    assert made.exit_code == 0, made.output
    shown = run("show", prefix, *tokenizer)
    assert shown.exit_code == 0, shown.output
    assert "vocabulary 2" in shown.output
