"""Count the lines of the code, and what grew and was cut: `python -m benchmarks.size`.

Lines are those of `.py` files as git has them: code, comments, docstrings and blanks.  It writes
docs/results/size.md from history alone; the notes at the end of that page are kept.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping

from benchmarks.pages import PAGES, ROOT, header
from benchmarks.tables import met, table

PAGE = PAGES / "size.md"
PRODUCT = ("planner", "migration", "worker", "heddle_operator", "heddle")
BEFORE, AFTER, TODAY = "39ad723a", "785c0645", "HEAD"  # the move to five packages is 785c0645
COMMITS = (BEFORE, AFTER, TODAY)
# Files of `heddle/` that stood in `planner/cli`; they count with the planner, as before.
OF_THE_PLANNER = (
    *("heddle/cli/interruption.py", "heddle/cli/inputs.py", "heddle/cli/megatron.py"),
    *("heddle/cli/options.py", "heddle/cli/pictures.py", "heddle/cli/progress.py"),
    *("heddle/cli/tables.py", "heddle/commands/plan.py", "heddle/commands/cost.py"),
    "heddle/commands/train_policy.py",
)
GOALS = {"planner": 18_000, "product": 50_000, "benchmarks": 8_500, "tests": 53_000}
ALL = "product, benchmarks, tests"
FEWER = 6_000  # lines of all together
MOST_ROWS = 16
NOTES = "## Notes\n"
ABOUT = """\
Lines of `.py` files, with comments, docstrings and blanks. The planner has its share of
`heddle/`: the files that were the planner's own commands before. The product is the five packages,
the planner among them. Benchmarks stood among the tests before, and count as such."""


def git(*words: str, given: str = "") -> bytes:
    """What a command of git says."""
    done = subprocess.run(
        ("git", *words), cwd=ROOT, input=given.encode(), capture_output=True, check=True
    )
    return done.stdout


def lines_of(commit: str) -> dict[str, int]:
    """{file: lines} of all Python files of a commit."""
    entries = (row.split("\t") for row in git("ls-tree", "-r", commit).decode().splitlines())
    blobs = [(about.split()[2], path) for about, path in entries if path.endswith(".py")]
    said = git("cat-file", "--batch", given="\n".join(blob for blob, _ in blobs))
    found, at = {}, 0
    for _, path in blobs:
        end = said.index(b"\n", at)
        size = int(said[at:end].split()[2])
        found[path] = said.count(b"\n", end + 1, end + 1 + size)
        at = end + 1 + size + 1
    return found


def parts(files: Mapping[str, int]) -> dict[str, int]:
    """Lines of each part that has a goal."""
    top: Counter[str] = Counter()
    for path, lines in files.items():
        top[path.partition("/")[0]] += lines
    inside_tests = sum(n for path, n in files.items() if path.startswith("tests/benchmarks/"))
    return {
        "planner": top["planner"] + sum(files.get(path, 0) for path in OF_THE_PLANNER),
        "product": sum(top[package] for package in PRODUCT),
        "benchmarks": top["benchmarks"] + inside_tests,
        "tests": top["tests"] - inside_tests,
    }


def folder_of(path: str) -> str:
    """The folder that a file counts for: two names, of unit tests three."""
    folders = path.split("/")[:-1]
    return "/".join(folders[: 3 if folders[:2] == ["tests", "unit"] else 2])


def growth(before: Mapping[str, int], today: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """(folder, lines before, lines today), the largest growth first."""
    was, now = Counter[str](), Counter[str]()
    for files, count in ((before, was), (today, now)):
        for path, lines in files.items():
            count[folder_of(path)] += lines
    found = [(folder, was[folder], now[folder]) for folder in now]
    return sorted(found, key=lambda row: row[1] - row[2])[:MOST_ROWS]


def cuts() -> Iterator[tuple[int, str, str]]:
    """(lines added less lines removed, commit, subject) of each commit since the move."""
    said = git("log", "--no-merges", "--numstat", "-M", "--format=%x00%h %s", f"{AFTER}..{TODAY}")
    for entry in said.decode().split("\0")[1:]:
        about, *rows = entry.strip().splitlines()
        numbers = [row.split("\t") for row in rows if row.endswith((".py", ".py}"))]
        net = sum(int(added) - int(removed) for added, removed, _ in numbers)
        commit, _, subject = about.partition(" ")
        yield net, commit, subject


def sizes(counted: Mapping[str, Mapping[str, int]]) -> str:
    """The table of parts at each commit, with goals and verdicts."""
    wanted = dict(GOALS)
    every = {commit: dict(lines) for commit, lines in counted.items()}
    for lines in every.values():
        lines[ALL] = sum(lines[name] for name in GOALS if name != "planner")
    wanted[ALL] = every[BEFORE][ALL] - FEWER
    rows = [
        [
            name,
            *(f"{every[commit][name]:,}" for commit in COMMITS),
            f"{goal:,}",
            *(met(every[commit][name] <= goal) for commit in (AFTER, TODAY)),
        ]
        for name, goal in wanted.items()
    ]
    head = ["lines of", f"before, {BEFORE}", f"after, {AFTER}", "today"]
    return table([*head, "goal", "after", "today"], rows)


def page() -> str:
    """The page without its notes."""
    files = {commit: lines_of(commit) for commit in COMMITS}
    grown = [
        (f"`{folder}/`", f"{was:,}", f"{now:,}", f"{now - was:+,}")
        for folder, was, now in growth(files[AFTER], files[TODAY])
    ]
    cut = [(f"{net:,}", commit, subject) for net, commit, subject in sorted(cuts())[:MOST_ROWS]]
    conditions = ".\nLines are counted from history; no machine matters."
    return "\n\n".join(
        (
            "# Lines of the code",
            header("python -m benchmarks.size", (*PRODUCT, "benchmarks", "tests"), conditions),
            ABOUT,
            sizes({commit: parts(lines) for commit, lines in files.items()}),
            f"## What grew since {AFTER}",
            table(["folder", "after", "today", "growth"], grown),
            f"## Cuts since {AFTER}",
            "Commits by added less removed lines of `.py` files.",
            table(["lines", "commit", "subject"], cut),
        )
    )


def main() -> None:
    """Write the page, and keep its notes."""
    kept = PAGE.read_text(encoding="utf-8").partition(NOTES)[2] if PAGE.exists() else "\n"
    PAGE.write_text(f"{page()}\n\n{NOTES}{kept}", encoding="utf-8")


if __name__ == "__main__":
    main()
