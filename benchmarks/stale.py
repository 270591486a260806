"""List the pages of results whose measured folders changed since: `python -m benchmarks.stale`.

Counts lines that were added or removed in the folders of a page's field `Measures`, between its
commit and HEAD.  Files that only moved, lines of imports and blank lines do not count; each other
line does, comments too.  A page that was measured with uncommitted changes is stale.  A stale page
that README links to is to be marked there, behind the link, with `of COMMIT` of its first header.

Ends with 1 where such a mark is missing.  `--check` asks instead whether each page has its header
and names nothing that is gone; it needs no history.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.pages import PAGES, ROOT, Header, faults, headers

IMPORT = r"^ *(from [A-Za-z_.]+ import .*|import .*|[A-Za-z_]+,|\))$"


class MissingHistory(Exception):
    """The checkout has not the commit of a page."""


def changed_lines(header: Header, root: Path = ROOT) -> int:
    """Lines that changed in the folders of a header, from its commit to HEAD of `root`.

    Raises:
        MissingHistory: the commit is not in this checkout.
    """
    how = ("--numstat", "-z", "-M", "-l0", "--ignore-blank-lines", "-I", IMPORT)
    done = subprocess.run(
        ["git", "diff", *how, header.commit, "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingHistory(header.commit)
    # A file is "added TAB removed TAB path", and a moved one has no path there but two after it.
    parts = iter(done.stdout.split("\0")[:-1])
    lines = 0
    for part in parts:
        added, removed, path = part.split("\t")
        before, after = (path, path) if path else (next(parts), next(parts))
        if after.startswith(header.folders) or before.startswith(header.folders):
            lines += sum(int(number) for number in (added, removed) if number.isdigit())
    return lines


def marked(readme: str, page: str, commit: str) -> bool:
    """Whether README marks the page with its commit behind every link to it, or links nowhere."""
    behind = [readme[m.end() :] for m in re.finditer(rf"docs/results/{page}\)", readme)]
    return all(re.match(rf",?\s+of\s+`?{commit}\b", text) for text in behind)


def main() -> None:
    """Print what is stale, or what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="headers and names only")
    options = parser.parse_args()
    found = faults()
    if options.check or found:
        print("\n".join(found), file=sys.stderr, end="\n" if found else "")
        sys.exit(1 if found else 0)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    unmarked = 0
    for path in sorted(PAGES.rglob("*.md")):
        name = str(path.relative_to(PAGES))
        found_headers = headers(path.read_text(encoding="utf-8"))
        for header in found_headers:
            try:
                lines = changed_lines(header)
            except MissingHistory as missing:
                print(f"{name}: this checkout has no commit {missing}; fetch all history")
                continue
            if not lines and not header.dirty:
                continue
            says = f"{name} of {header.commit}: {lines} lines changed in "
            says += ", ".join(header.folders)
            if header is found_headers[0] and not marked(readme, name, header.commit):
                unmarked += 1
                says += f"; README links to it without 'of {header.commit}'"
            print(says)
    sys.exit(1 if unmarked else 0)


if __name__ == "__main__":
    main()
