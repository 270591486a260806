"""Pages of results say of which code they are, and name nothing that is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.pages import (
    ROOT,
    commit_of_checkout,
    faults_of_header,
    faults_of_names,
    header,
    headers,
)
from benchmarks.stale import changed_lines, marked

BENCHMARKS = ROOT / "benchmarks"
PAGE = """# Title

Command: `python -m benchmarks.start`
Date: 2026-11-27
Commit: d63b96a9
Measures: `heddle/`, `worker/rank/`
Machine: 2 cores, Linux x86_64, no GPU,
shared with other work.

Text.
"""


def test_a_whole_header_is_read_and_has_no_fault():
    (found,) = headers(PAGE)
    assert faults_of_header(PAGE) == []
    assert (found.commit, found.dirty) == ("d63b96a9", False)
    assert found.folders == ("heddle/", "worker/rank/")


@pytest.mark.parametrize("field", ["Date", "Commit", "Measures", "Machine"])
def test_a_header_without_a_field_is_told(field: str):
    lacking = "\n".join(line for line in PAGE.splitlines() if not line.startswith(field))
    assert [fault for fault in faults_of_header(lacking) if field in fault]


def test_a_page_without_a_command_has_no_header():
    assert faults_of_header(PAGE.replace("Command: ", "")) != []


def test_a_commit_that_is_no_commit_and_a_folder_that_is_gone_are_told():
    assert faults_of_header(PAGE.replace("d63b96a9", "unknown"))
    assert faults_of_header(PAGE.replace("worker/rank/", "worker/ranks/"))


def test_what_a_benchmark_writes_is_a_header():
    (written,) = headers(header("python -m benchmarks.start", ["heddle", "worker"], ", alone."))
    assert set(written.fields) == {"Command", "Date", "Commit", "Measures", "Machine"}
    assert written.folders == ("heddle/", "worker/")


@pytest.mark.parametrize(
    "gone",
    [
        "`make no-such-target`",
        "`python -m benchmarks.no_such_module --pairs 5`",
        "`HEDDLE_GANGS=5 pytest -s tests/e2e/kubernetes/test_no_such.py`",
        "`heddle no-such-command`",
        "`heddle plan --no-such-option 3`",
        "`heddle data no-such-command`",
    ],
)
def test_what_a_page_names_and_is_gone_is_told(gone: str):
    assert len(faults_of_names(f"Measured by {gone}.")) == 1


def test_what_a_page_names_and_is_there_is_no_fault():
    names = "`make test`, `python -m benchmarks.planner bound`, `heddle plan --budget-s 0.5`"
    assert faults_of_names(names) == []


def test_the_readme_lists_every_command_and_none_that_is_gone():
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert faults_of_names(text) == []
    for path in BENCHMARKS.rglob("*.py"):
        commands = path.name == "__main__.py" or path.parent == BENCHMARKS
        if commands and '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            assert f"`python -m {module.removesuffix('.__main__')}" in text


def test_a_line_counts_but_no_move_no_import_and_no_other_folder(tmp_path: Path):
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit() -> None:
        git("add", "-A")
        git("commit", "-q", "-m", "a change")

    code = "".join(f"line_{number} = {number}\n" for number in range(20))
    git("init", "-q")
    for folder in ("old", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("from old import a\n" + folder + code)
    commit()
    text = PAGE.replace("d63b96a9", git("rev-parse", "--short=8", "HEAD"))
    (found,) = headers(text.replace("worker/rank/", "new/"))
    (tmp_path / "new").mkdir()
    git("mv", "old/a.py", "new/b.py")
    (tmp_path / "new" / "b.py").write_text("from new import a\nold" + code)
    (tmp_path / "other" / "a.py").write_text("changed")
    commit()
    assert changed_lines(found, tmp_path) == 0
    (tmp_path / "new" / "b.py").write_text("from new import a\nold" + code + "more = 1\n")
    commit()
    assert changed_lines(found, tmp_path) == 1


def test_readme_marks_a_page_behind_every_link_to_it():
    link = "[all](docs/results/start.md)"
    assert marked("nothing", "start.md", "d63b96a9")
    assert not marked(f"({link}, median)", "start.md", "d63b96a9")
    assert marked(f"({link} of `d63b96a9`, median)", "start.md", "d63b96a9")
    assert not marked(f"({link} of d63b96a9), {link}", "start.md", "d63b96a9")


def test_a_checkout_is_dirty_by_its_code_and_not_by_what_benchmarks_write(tmp_path):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(("git", *who, *arguments), cwd=tmp_path, check=True, capture_output=True)

    files = ("planner/rule.py", "docs/results/page.md", "benchmarks/part/found.json")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("before")
    assert commit_of_checkout(tmp_path) == "unknown"
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    clean = commit_of_checkout(tmp_path)
    for file in files[1:]:
        (tmp_path / file).write_text("after")
    assert commit_of_checkout(tmp_path) == clean
    (tmp_path / files[0]).write_text("after")
    assert commit_of_checkout(tmp_path) == clean + "-dirty"
