"""planner/strict_yaml.py: plain data, each key once."""

import pytest
import yaml

from planner.errors import InvalidComposition
from planner.strict_yaml import load_yaml, read_yaml
from tests.refusals import refused


def test_plain_data_is_read_as_by_any_reader_of_yaml():
    text = "- {name: a, gpus: 2}\n- &b {name: b}\n- {<<: *b, gpus: 1}\n"
    assert load_yaml(text) == yaml.safe_load(text)
    assert load_yaml('{"h100": 2.5}') == {"h100": 2.5}
    assert load_yaml("") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{name: a, gpus: 2, name: b}", "the key 'name' stands twice; keep one"),
        ("h100: 2\na100-40: 1\nh100: 3\n", "the key 'h100' stands twice"),
        ("[" * 3000, "nested too deeply"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: [", "while parsing"),
        ("a: 1\n---\nb: 2\n", "single document"),
        ("a: 2026-02-30", "another form than its kind"),
        ("a: !!int x", "another form than its kind"),
        ("a: !!bool x", "another form than its kind"),
        ("a: !!timestamp x", "another form than its kind"),
    ],
)
def test_what_is_wrong_is_an_error_of_yaml(text, words):
    with pytest.raises(yaml.YAMLError, match=words):
        load_yaml(text)


def test_of_several_documents_the_only_one_of_a_kind_is_meant():
    text = "kind: Claim\n---\nkind: Job\nname: a\n---\n"
    assert load_yaml(text, "Job") == {"kind": "Job", "name": "a"}
    assert load_yaml("kind: Claim", "Job") == {"kind": "Claim"}
    assert load_yaml("", "Job") is None
    for several in (f"{text}kind: Job", "a: 1\n---\nb: 2"):
        with pytest.raises(yaml.YAMLError, match="documents of kind Job; keep one"):
            load_yaml(several, "Job")


def test_a_second_document_is_not_called_a_mistake_of_the_syntax(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("a: 1\n---\nb: 2\n")
    with refused(InvalidComposition, "Unreadable") as found:
        read_yaml(path, "job file", InvalidComposition)
    assert "not YAML" not in str(found.value)


@pytest.mark.parametrize("content", [None, b"a: [", b"\xff\xfe", b"a: 1\nb: 2\na: 3", b"a: \x00"])
def test_a_file_that_cannot_be_read_is_an_error_of_its_own_code(tmp_path, content):
    path = tmp_path / "nodes.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidComposition) as found:
        read_yaml(path, "nodes file", InvalidComposition)
    assert found.value.code == "Unreadable"


@pytest.mark.parametrize(("text", "number"), [("1e2", 100.0), ("-2.5E-1", -0.25), (".5e1", 5.0)])
def test_a_number_with_an_exponent_is_one(text, number):
    assert load_yaml(f"a: {text}") == {"a": number}
    assert load_yaml(f"a: '{text}'") == {"a": text}
    assert load_yaml("{a: 1e, b: e2, c: 12}") == {"a": "1e", "b": "e2", "c": 12}
