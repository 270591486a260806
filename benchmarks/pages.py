"""The header of a page of results: its fields, who writes them, and what a page may still name.

A page in docs/results has one header for each command that measured it; each field begins a line:

    Command: `python -m benchmarks.start --pairs 5`
    Date: 2026-11-27
    Commit: d63b96a9
    Measures: `heddle/`, `worker/`
    Machine: 2 cores (AMD EPYC), Linux x86_64, no GPU.

Figures are of the folders of `Measures` at `Commit`; the machine may take several lines.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "results"
WRITTEN = ("docs/**", "benchmarks/**/*.json")  # by benchmarks
FORMS = {
    "Command": r"`.+",
    "Date": r"\d{4}-\d\d-\d\d\b.*",
    "Commit": r"[0-9a-f]{8}(-dirty)?",
    "Measures": r"`[\w/.]+`(, `[\w/.]+`)*",
    "Machine": r".+",
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """One header of a page."""

    fields: dict[str, str]

    @property
    def commit(self) -> str:
        """The commit whose code was measured; 8 hexadecimal digits."""
        return self.fields["Commit"].removesuffix("-dirty")

    @property
    def dirty(self) -> bool:
        """Whether measured files differed from that commit."""
        return self.fields["Commit"].endswith("-dirty")

    @property
    def folders(self) -> tuple[str, ...]:
        """The measured folders, from the root of the repository."""
        return tuple(re.findall("`([^`]+)`", self.fields["Measures"]))


def processor() -> str:
    """The name of the processor, without its model number."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return re.sub(r"\(\w+\)", "", " ".join(line.partition(":")[2].split()[:2]))
    return platform.processor() or "unknown"


def commit_of_checkout(root: Path = ROOT) -> str:
    """The commit of a checkout, `-dirty` where its code differs; "unknown" outside of git.

    What a benchmark itself writes, pages and stored figures, is no code.
    """
    commit = _git(root, "describe", "--always", "--exclude=*", "--abbrev=8")
    if not commit:
        return "unknown"
    code = (".", *(f":(exclude,glob){files}" for files in WRITTEN))
    return commit + ("-dirty" if _git(root, "diff", "--name-only", "HEAD", "--", *code) else "")


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def header(command: str, measures: Sequence[str], conditions: str) -> str:
    """The header that a benchmark writes now, on this machine.

    `command` is without its backquotes, `measures` are folders from the root; `conditions` goes on
    after "no GPU" with a comma or a full stop.
    """
    folders = ", ".join(f"`{folder}/`" for folder in measures)
    return (
        f"Command: `{command}`\n"
        f"Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}\n"
        f"Commit: {commit_of_checkout()}\n"
        f"Measures: {folders}\n"
        f"Machine: {os.cpu_count()} cores ({processor()}), {platform.system()} "
        f"{platform.machine()}, no GPU{conditions}"
    )


def headers(text: str) -> list[Header]:
    """The headers of a page; a field that is missing is missing in them."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("Command: "):
            lines = (line.partition(": ") for line in block.splitlines())
            found.append(Header(fields={name: value for name, _, value in lines if name in FORMS}))
    return found


def faults_of_header(text: str) -> list[str]:
    """Faults in the headers of a page, a sentence each."""
    found = headers(text)
    if not found:
        return ["no header: no paragraph begins with 'Command: '"]
    faults = []
    for each in found:
        for name, form in FORMS.items():
            value = each.fields.get(name)
            if value is None:
                faults.append(f"the header lacks '{name}: '")
            elif not re.fullmatch(form, value):
                faults.append(f"'{name}: {value}' has not the form {form}")
        if "Measures" in each.fields:
            gone = [folder for folder in each.folders if not (ROOT / folder).is_dir()]
            faults += [f"the folder {folder} is gone" for folder in gone]
    return faults


def _module_exists(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def _heddle_faults(words: Sequence[str]) -> Iterator[str]:
    """Parts of one call of `heddle` that are gone, given its words."""
    from heddle.main import heddle  # imports what a page names, only where it names it

    context = click.Context(heddle)
    command: click.Command = heddle
    names: list[str] = []
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        known = command.list_commands(context)
        if word not in known:
            yield f"the command `heddle {' '.join([*names, word])}` is gone"
            return
        found = command.get_command(context, word)
        assert found is not None
        command = found
        names.append(word)
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in {*options, "--help", "--version"}:
            yield f"the option {option} of `heddle {' '.join(names)}` is gone"


def faults_of_names(text: str) -> list[str]:
    """Each target of make, module, test file, command or option that a page names and is gone."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    faults = []
    for span in re.findall(r"`([^`\n]+)`", text):
        words = span.split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        match words:
            case ["make", target, *_] if target not in targets:
                faults.append(f"the target `make {target}` is gone")
            case ["python", "-m", module, *_] if not _module_exists(module):
                faults.append(f"the module `python -m {module}` is gone")
            case ["pytest", *rest]:
                paths = [word.partition("::")[0] for word in rest if word.startswith("tests/")]
                faults += [f"{path} is gone" for path in paths if not (ROOT / path).exists()]
            case ["heddle", *rest] if rest:
                faults += _heddle_faults(rest)
    return faults


def faults() -> list[str]:
    """Faults in the pages of docs/results, a sentence each that begins with the page."""
    return [
        f"docs/results/{path.relative_to(PAGES)}: {fault}"
        for path in sorted(PAGES.rglob("*.md"))
        for text in (path.read_text(encoding="utf-8"),)
        for fault in (*faults_of_header(text), *faults_of_names(text))
    ]
