"""How far random jobs under random plans are from plain torch: dense models, mixtures of experts.

    python -m benchmarks.exactness [--dense N] [--mixtures N] [--minutes M] [--seed S]

The claims of `tests/distributed/exact/judged.py` on more jobs and steps.  Writes
docs/results/exactness.md.  What came of each job is kept in build/exactness.jsonl, and is not tried
again until that file is removed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.kept_rows import kept_rows
from benchmarks.pages import header
from tests.distributed.exact.exactness import GPUS, PRECISIONS, Case, cases, ranks_find
from tests.distributed.exact.judged import SPREAD, TOLERANCE, judged
from tests.unit.worker.data.lines import prepared_lines

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "exactness.jsonl"
SEED, MINUTES = 26, 600.0
LIMIT_S = 3600.0  # for the jobs of one world of processes, on a busy machine


class Kind(NamedTuple):
    """A kind of jobs.

    Attributes:
        jobs: how many, unless the command says otherwise.
        steps: of each job, as many under each of its plans.
        at_once: jobs of one world of processes: each family.
        worlds: kinds of `cases`, in turn.
    """

    jobs: int
    steps: int
    at_once: int
    worlds: tuple[str, ...]


KINDS = {
    "mixtures": Kind(200, 9, 10, ("fp32 mixtures", "fp32 mixtures", "mixtures")),
    "dense": Kind(42, 50, 7, ("dense",)),
}


def main() -> None:
    """Try what is not tried yet while there is time, and write."""
    torch.set_num_threads(1)  # as in the ranks; the models are tiny
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=kind.jobs, help="jobs")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="none begins after them")
    parser.add_argument("--seed", type=int, default=SEED, help="of jobs and plans")
    options = parser.parse_args()
    until_s = time.monotonic() + 60 * options.minutes
    KEPT.parent.mkdir(exist_ok=True)
    rows = kept_rows(KEPT)
    with tempfile.TemporaryDirectory() as folder:
        prefix = prepared_lines(Path(folder))
        for name, kind in KINDS.items():
            wanted = getattr(options, name)
            while time.monotonic() < until_s:
                done = sum(row["kind"] == name for row in rows)
                if done >= wanted:
                    break
                world = kind.worlds[done // kind.at_once % len(kind.worlds)]
                rows += tried(name, (options.seed + done, kind.at_once, kind.steps, world), prefix)
                text = "".join(json.dumps(row) + "\n" for row in rows)
                KEPT.write_text(text, encoding="utf-8")
    page = ROOT / "docs" / "results" / "exactness.md"
    text = page_of(rows, options.seed, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    print(text)


def tried(name: str, wanted: tuple[Any, ...], prefix: str) -> list[dict[str, Any]]:
    """What came of the jobs of a world; of one whose claim is broken, the sentence."""
    rows = []
    for case, answers in zip(cases(*wanted), ranks_find(wanted, prefix, LIMIT_S), strict=True):
        row: dict[str, Any] = {
            "kind": name,
            "job": str(case),
            "precision": case.spec.precision,
            "facts": facts(case),
            "broken": "",
        }
        try:
            row |= judged(case, prefix, answers)._asdict()
        except AssertionError as error:
            row["broken"] = str(error) or "a claim is broken"
        rows.append(row)
        print(row, flush=True)
    return rows


def facts(case: Case) -> list[str]:
    """What the plans of a job have, each once."""
    templates = [template for plan in case.plans for template in plan.templates]
    stages = [stage for template in templates for stage in template.stages]
    found = {
        "EP": any(stage.ep > 1 for stage in stages),
        "EP with ETP": any(stage.ep > 1 and stage.expert_tp > 1 for stage in stages),
        "ETP across replicas": any(stage.expert_tp > stage.tp for stage in stages),
        "ZeRO": any(plan.zero for plan in case.plans),
        "unequal replicas in lock-step": any(
            template.is_in_lock_step and len(set(template.micro_batches)) > 1
            for template in templates
        ),
    }
    return [name for name, is_so in found.items() if is_so]


def page_of(rows: list[dict[str, Any]], seed: int, before: str) -> str:
    """The result file; a kind of which no job ran keeps its section of the page before."""
    found = [TITLE]
    for name, (heading, said) in SECTIONS.items():
        own = [row for row in rows if row["kind"] == name]
        if own:
            command = f"python -m benchmarks.exactness --{name} {len(own)} --seed {seed}"
            head = header(command, ["worker", "migration"], ", shared with other work.")
            found.append("\n\n".join((heading, head, said(own))))
        elif heading in before:
            kept = before.partition(heading)[2].partition("\n## ")[0]
            found.append(f"{heading}{kept}".rstrip())
    return "\n\n".join(found) + "\n"


def of_dense(rows: list[dict[str, Any]]) -> str:
    """What dense jobs came to."""
    lines = [
        f"{len(rows)} jobs: the seven families in turn, each precision, tied or not, with dropout",
        "and document masks or without, weight decay or not. Each has two random plans of up to",
        f"{GPUS} ranks: one to three templates, depth 1 to 4, TP 1, 2 and 4, recomputation stage",
        f"by stage. Half of the {KINDS['dense'].steps} steps go under each, and the state moves",
        "between them.",
        "",
        *table(rows),
        "",
        *claims(rows),
    ]
    return "\n".join(lines)


def of_mixtures(rows: list[dict[str, Any]]) -> str:
    """What mixtures of experts came to."""
    lines = [
        f"{len(rows)} jobs: Mixtral, Qwen3-MoE, DeepSeek-V2 without and with groups, and",
        f"DeepSeek-V3 in turn. Each has three random plans of up to {GPUS} ranks, each with any",
        f"tiling, with ZeRO or without. A third of the {KINDS['mixtures'].steps} steps goes under",
        "each. The state moves from the first plan to the second. The second saves a checkpoint,",
        "and the third goes on from it.",
        "",
        *table(rows),
        "",
        *counts(rows),
        "",
        *claims(rows),
        *visits(rows),
    ]
    return "\n".join(lines)


TITLE = "# Random jobs under random plans"
SECTIONS = {
    "dense": ("## Dense models", of_dense),
    "mixtures": ("## Mixtures of experts", of_mixtures),
}


def claims(rows: list[dict[str, Any]]) -> list[str]:
    """What was allowed, and what held bit by bit."""
    return [
        f"- Allowed in fp32: {TOLERANCE:.0e} from plain torch at each step. In bf16 and fp16: "
        f"{SPREAD:g} times the",
        "  largest difference between plain processes with micro-batches of 1, 2 and 4.",
        f"- All {sum(row.get('copies', 0) for row in rows):,} copies of pieces (master, moments, "
        "low-precision weight) that several",
        "  ranks held after a step had the same bits. Loss, norm and loss scale were the same on "
        "all ranks.",
        "- The state had the same digest before and after each change.",
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """How near the jobs of each precision come to the limit."""
    lines = [
        "| precision | jobs | nearest to the limit: a loss differs by | limit | of the limit | "
        "beyond it | another claim broken |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for precision in PRECISIONS:
        own = [row for row in rows if row["precision"] == precision]
        whole = [row for row in own if not row["broken"]]
        if not whole:
            continue
        worst = max(whole, key=lambda row: row["worst"] / row["allowed"])
        shares = sorted(row["worst"] / row["allowed"] for row in whole)
        beyond = sum(share > 1 for share in shares)
        lines.append(
            f"| {precision} | {len(own)} | {worst['worst']:.1e} ({worst['job']}) | "
            f"{worst['allowed']:.1e} | median {shares[len(shares) // 2]:.2f}, most "
            f"{shares[-1]:.2f} | {beyond} | {len(own) - len(whole)} |"
        )
    return lines


def counts(rows: list[dict[str, Any]]) -> list[str]:
    """In how many jobs a plan has something."""
    names = list(dict.fromkeys(name for row in rows for name in row["facts"]))
    return [
        "| a plan has | jobs |",
        "| --- | --- |",
        *(f"| {name} | {sum(name in row['facts'] for row in rows)} |" for name in names),
    ]


def visits(rows: list[dict[str, Any]]) -> list[str]:
    """How many visits of experts the ranks told, and how many plain torch has elsewhere."""
    lines = []
    for precision in PRECISIONS:
        own = [row for row in rows if row["precision"] == precision and not row["broken"]]
        if own:
            total, other = (sum(row[name] for row in own) for name in ("visits", "elsewhere"))
            lines.append(
                f"- Visits of experts in {precision}: {total:,}. Plain torch has {other:,} of them "
                "at another expert."
            )
    broken = [f"- Broken: {row['job']}: {row['broken']}." for row in rows if row["broken"]]
    return [*lines, *broken]


if __name__ == "__main__":
    main()
