"""Plain English in all that people read: documents, resource, chart, settings, help.

The law is in CONTRIBUTING.md.  A sentence ends at `.`, `!`, `?` or `:`; code counts as one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from heddle.main import heddle
from heddle_operator.resources.generate import RULES
from heddle_operator.state.settings import settings_schema

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("profiles/*.md"),
        ROOT / "benchmarks" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    if not {"results", "reference"} & set(path.parts)
)
MOST_WORDS = 22  # the law says 20; some sentences list names
MOST_OF_HELP = 24  # --composition lists the GPU types
NO = "(?:no|not|never|nobody|nothing|none|cannot)"
BANNED = {
    "'of which' for a clause of its own": re.compile(r"\bof (?:which|whom)\b"),
    "a clause for a noun": re.compile(r"^(?:What|Who|Whoever|Whatever|Those that) [^?]*$"),
    "a double negation": re.compile(
        rf"\b{NO}\b[^,;]*\b(?:until|unless|without|but|that|which)\b[^,;]*\b{NO}\b", re.IGNORECASE
    ),
}
DITTO = re.compile(r'^(?:"|\'\'|″|〃|ditto|as above|as there)$', re.IGNORECASE)


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, headings, list items and table cells of Markdown, without code blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.DOTALL)
    lines = re.sub(r"^(\s*)(?:[-*]|\d+\.) ", r"\n\1", text, flags=re.MULTILINE)
    apart = re.sub(r"^(\|.*)$", r"\n\1\n", lines, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|^#+ .*$", apart, flags=re.MULTILINE):
        if block.strip().startswith("|"):
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", block.strip().strip("|")))
        elif block.strip():
            yield " ".join(block.split())


def sentences(block: str) -> list[str]:
    """The sentences of a block, each piece of code as one word and without links."""
    plain = re.sub(r"`[^`]*`", "x", block)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("*", "")
    plain = re.sub(r"\b(e\.g|i\.e|et al|vs|cf)\.", r"\1", plain)
    return [part for part in re.split(r"(?<=[.!?:])[)\"']?\s+", plain) if part.strip()]


def descriptions(node: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """(path, description) of every field of a schema."""
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            yield where, node["description"]
        for key, value in node.items():
            yield from descriptions(value, f"{where}.{key}")
    elif isinstance(node, list):
        for value in node:
            yield from descriptions(value, where)


def commands(command: click.Command, words: str) -> Iterator[tuple[str, str]]:
    """(option, help) of a command and all below it."""
    yield words, (command.help or "").split("\b")[0]
    for option in command.params:
        if isinstance(option, click.Option) and option.help and not option.hidden:
            yield f"{words} {option.opts[0]}", option.help.partition("  [")[0]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{words} {name}")


def texts() -> dict[str, list[tuple[str, str]]]:
    """{source: [(place, block)]} of all that is no document."""
    crd = yaml.safe_load((ROOT / "manifests/crd/heddlejob.yaml").read_text())
    rules = yaml.safe_load(RULES.read_text())["rules"]
    values = (ROOT / "charts/heddle/values.yaml").read_text()
    return {
        "resource": list(descriptions(crd["spec"]["versions"][0]["schema"])),
        "rules": [(path, rule["message"]) for path, of in rules.items() for rule in of],
        "settings": list(descriptions(settings_schema())),
        "chart": [("values.yaml", row) for row in re.findall(r"# -- (.*)", values)],
        "help": [(place, " ".join(text.split())) for place, text in commands(heddle, "heddle")],
    }


def faults(place: str, block: str, most: int = MOST_WORDS) -> Iterator[str]:
    """What the law forbids in a block, with the sentence."""
    if DITTO.match(block):
        yield f"{place}: a ditto mark for a cell"
    for sentence in sentences(block):
        number = len(sentence.split())
        if number > most:
            yield f"{place}: {number} words: {sentence}"
        for name, pattern in BANNED.items():
            if pattern.search(sentence):
                yield f"{place}: {name}: {sentence}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_is_plain(path):
    found = [row for block in blocks(path.read_text()) for row in faults(path.name, block)]
    assert found == [], "\n" + "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_line_of_a_document_fits_a_screen(path):
    """Tables and code aside; the changelog has a limit of its own."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    most = 130 if path.name == "CHANGELOG.md" else 120
    assert [line for line in text.splitlines() if len(line) > most and line[0] != "|"] == []


@pytest.mark.parametrize("source", ["resource", "rules", "settings", "chart", "help"])
def test_a_field_an_option_and_a_value_are_plain(source):
    most = MOST_OF_HELP if source == "help" else MOST_WORDS
    found = [row for place, block in texts()[source] for row in faults(place, block, most)]
    assert found == [], "\n" + "\n".join(found)


def test_a_decision_has_a_number_of_its_own_and_its_four_sections_in_order():
    paths = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len({path.name[:4] for path in paths}) == len(paths)
    for path in paths:
        text = path.read_text()
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        heads = re.findall(r"^## (.*)", text, re.MULTILINE)
        assert heads[:4] == ["Status", "Context", "Decision", "Consequences"], path.name


def test_the_changelog_gives_each_feature_one_line():
    entries = (ROOT / "CHANGELOG.md").read_text().split("\n### ", 1)[1].splitlines()
    assert [line for line in entries if line.startswith(" ") or len(line) > 130] == []


@pytest.mark.parametrize(
    "bad",
    [
        '"',
        "as above",
        "What stands is told.",
        "A node, of which two are gone.",
        "No node waits until not one is left.",
        "word " * 23 + ".",
    ],
)
def test_the_law_sees_what_it_forbids(bad):
    assert [row for block in blocks(f"| a | {bad} |") for row in faults("here", block)]


def test_the_law_lets_questions_lists_and_code_be():
    good = "What moves? `a b c` and [a page](of/which.md): " + "word " * 21 + "end."
    assert list(faults("here", good)) == []
