"""Cost of faults of every way and kind of process, in every part of a change.

    python -m benchmarks.faults [--pairs N] [--seed S]
    python -m benchmarks.faults --staged LOG OUTPUT COMMIT

The campaign of `make test-kills`, with the seconds from each fault to the end of the next step that
began after it; then pairs of faults at once.  Writes docs/results/faults.md.  What was measured is
kept in build/faults.jsonl, and not measured again until that file is removed.
The second command measures nothing: it writes the part of the page on wires through staging memory,
from a run of `HEDDLE_WIRE=staged pytest -v -o log_file=LOG -o log_file_level=INFO` on test_kills.py
whose output is OUTPUT, at COMMIT.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.kept_rows import kept_rows
from benchmarks.pages import header
from tests.distributed.faults.campaign import (
    AGAIN_S,
    PARTS,
    PEER_TIMEOUT_S,
    SIGNALS,
    SLOW_S,
    SLOWER,
    WAYS,
    Fault,
    check,
)
from worker.data.making.prepare import prepare

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "faults.jsonl"
PAGE = ROOT / "docs" / "results" / "faults.md"
STAGED = "## On wires through staging memory"
Case = tuple[str, tuple[Fault, ...]]


def main() -> None:
    """Measure what is not measured yet, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8, help="random pairs of faults")
    parser.add_argument("--seed", type=int, default=25, help="of the pairs")
    parser.add_argument("--staged", nargs=3, metavar=("LOG", "OUTPUT", "COMMIT"), help="see above")
    options = parser.parse_args()
    if options.staged:
        log, output, commit = options.staged
        part = staged_part(Path(log).read_text(), Path(output).read_text(), commit)
        PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(STAGED)[0].rstrip() + part)
        return
    KEPT.parent.mkdir(exist_ok=True)
    done = kept_rows(KEPT)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text"
        prepare([Path(json.__file__).parent], data, None, None)
        for name, cases in groups(options.pairs, options.seed):
            if name in {row["group"] for row in done}:
                continue
            at = Path(folder) / name
            at.mkdir()
            found = check(at, data, cases)
            rows = [
                {"group": name, "part": part, "faults": [str(f) for f in faults], "again_s": s}
                for (part, faults), s in zip(cases, found, strict=True)
            ]
            with KEPT.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(name, [round(row["again_s"], 1) for row in rows], flush=True)
            done += rows
            write(done, options)
    write(done, options)


def write(done: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The result file, with what is measured so far."""
    wanted = sum(len(cases) for _, cases in groups(options.pairs, options.seed))
    text = report(done, wanted)
    _, mark, staged = PAGE.read_text(encoding="utf-8").partition(STAGED)
    PAGE.write_text(f"{text}\n{mark}{staged}" if mark else text, encoding="utf-8")
    print(text)


def groups(pairs: int, seed: int) -> list[tuple[str, list[Case]]]:
    """One job for each way and part; then the pairs, four to a job."""
    found: list[tuple[str, list[Case]]] = [
        (f"{way}-{part}", [(part, (Fault(way, kind, i),)) for i, kind in enumerate(kinds)])
        for way, kinds in WAYS.items()
        for part in PARTS
    ]
    choose = random.Random(seed)
    chosen = [random_pair(choose) for _ in range(pairs)]
    found += [(f"pairs-{seed}-{i}", chosen[i : i + 4]) for i in range(0, pairs, 4)]
    return found


def random_pair(choose: random.Random) -> Case:
    """A fault of a pod's processes, and one of the store: a copy of the state is left."""
    first = Fault(
        choose.choice(list(SIGNALS)), choose.choice(("rank", "agent", "pod")), choose.randrange(3)
    )
    return choose.choice(PARTS), (first, Fault(choose.choice(list(SIGNALS)), "store", 0))


def staged_part(log: str, output: str, commit: str) -> str:
    """The part of the page on wires through staging memory: of the jobs that passed, and no other.

    Args:
        log: of the campaign, a line for each fault.
        output: of pytest, a line for each job.
        commit: of the code that ran.
    """
    jobs = re.findall(r"\[(\w+)-(\w+)\] (PASSED|FAILED)", output)
    told = re.findall(r"(\w+) (\w+) \d+ in (\w+): a step again after ([\d.]+) s", log)
    times = {(way, part, kind): seconds for way, kind, part, seconds in told}
    passed = {(way, part) for way, part, outcome in jobs if outcome == "PASSED"}
    wanted = sum(len(kinds) for kinds in WAYS.values()) * len(PARTS)
    found = {case: seconds for case, seconds in times.items() if case[:2] in passed}
    command = "HEDDLE_WIRE=staged .venv/bin/pytest tests/distributed/faults/test_kills.py"
    head = header(command, ["worker", "migration", "heddle_operator"], ", busy")
    lines = ["", "", STAGED, "", re.sub("(?m)^Commit: .*", f"Commit: {commit}", head)]
    lines += ["with other work: the kernel had several processes in turn for each core."]
    for way, kinds in WAYS.items():
        parts = [part for part in PARTS if (way, part) in passed]
        if parts:
            lines += ["", f"| {way} | {' | '.join(kinds)} |", "| --- |" + " --- |" * len(kinds)]
            lines += [
                f"| {part} | {' | '.join(found.get((way, part, kind), '-') for kind in kinds)} |"
                for part in parts
            ]
    failed = [f"{way} in {part}" for way, part, outcome in jobs if outcome == "FAILED"]
    longest = max(map(float, found.values()), default=0)
    lines += [
        "",
        f"- {len(found)} of {wanted} cases ran in {len(passed)} jobs that passed.",
        *(["  The run ended before the others."] if len(found) < wanted else []),
        f"- Jobs that failed: {', '.join(failed) or 'none'}.",
        "- In jobs that passed no step was lost or trained twice, and every loss is within 1e-5 of",
        "  that of one plain process.",
        f"- The longest took {longest:.1f} s; the bound is {AGAIN_S:.0f} s.",
    ]
    return "\n".join(lines) + "\n"


def report(rows: list[dict[str, Any]], wanted: int) -> str:
    """The result file, of so many cases that there are."""
    seconds = [row["again_s"] for row in rows]
    lines = [
        "# Faults in every part of a change",
        "",
        header(
            "python -m benchmarks.faults", ["worker", "migration", "heddle_operator"], ", shared"
        ),
        "with other work. Pods are processes of this machine; the decision loop, agents, ranks and",
        "the moves of state are real; devices are emulated.",
        "",
        "Seconds from a fault to the end of the next step that began after it. All ranks pause at",
        f"the part before it happens. `peerTimeoutSeconds` is {PEER_TIMEOUT_S}. A pod that is "
        "blackholed gets no",
        f"packet through, nor to it, until then. A slow process is {SLOWER:g} times slower for "
        f"{SLOW_S:g} s.",
        "Its seconds count from their end, and nobody may be taken for lost meanwhile.",
    ]
    for way, kinds in WAYS.items():
        lines += ["", f"| {way} | " + " | ".join(kinds) + " |", "| --- |" + " --- |" * len(kinds)]
        for part in PARTS:
            one = [row for row in rows if row["group"] == f"{way}-{part}"]
            cells = [f"{row['again_s']:.1f}" for row in one] or ["-"] * len(kinds)
            lines.append(f"| {part} | " + " | ".join(cells) + " |")
    pairs = [row for row in rows if row["group"].startswith("pairs")]
    lines += ["", "| two at once | part | seconds |", "| --- | --- | --- |"]
    lines += [f"| {', '.join(r['faults'])} | {r['part']} | {r['again_s']:.1f} |" for r in pairs]
    lines += [
        "",
        f"- {len(rows)} of {wanted} cases are measured (`-`: not yet). In these no step was lost",
        "  or trained twice, and every loss is within 1e-5 of that of one plain process (else it",
        "  fails).",
        f"- The longest took {max(seconds, default=0):.1f} s; the bound is {AGAIN_S:.0f} s.",
        "- A process that is stopped closes no connection: it is noticed by its heartbeats.",
        "  A new pod, in a killed one's place, imports torch first; the others train meanwhile.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
