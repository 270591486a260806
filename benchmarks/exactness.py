"""How far random jobs under random plans are from plain torch.

    python -m benchmarks.exactness [--jobs N] [--steps N] [--seed S]

The claims of `tests/distributed/exact/exactness.py` on more jobs, of 50 steps.  Writes
docs/results/exactness.md.  What came of each job is kept in build/exactness.jsonl, and is not tried
again until that file is removed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.kept_rows import kept_rows
from benchmarks.pages import header
from tests.distributed.exact.exactness import (
    GPUS,
    PRECISIONS,
    SPREAD,
    TOLERANCE,
    cases,
    judged,
    ranks_find,
)
from tests.unit.worker.data.lines import prepared_lines

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "exactness.jsonl"
JOBS, STEPS, SEED = 42, 50, 26
AT_ONCE = 7  # jobs of one world of processes: each family
LIMIT_S = 1200.0  # for them


def main() -> None:
    """Try what is not tried yet, and write."""
    torch.set_num_threads(1)  # as in the ranks; the models are tiny
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each job, half under a plan")
    parser.add_argument("--seed", type=int, default=SEED, help="of jobs and plans")
    options = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    rows = kept_rows(KEPT)
    with tempfile.TemporaryDirectory() as folder:
        prefix = prepared_lines(Path(folder))
        for first in range(0, options.jobs, AT_ONCE):
            if len(rows) >= first + AT_ONCE:
                continue
            seed = options.seed + first
            found = ranks_find((seed, AT_ONCE, options.steps), prefix, LIMIT_S)
            for case, answers in zip(cases(seed, AT_ONCE, options.steps), found, strict=True):
                result = judged(case, prefix, answers)
                rows.append(
                    {
                        "job": str(case),
                        "precision": case.spec.precision,
                        "ranks": [plan.gpus for plan in case.plans],
                        "worst": result.worst,
                        "allowed": result.allowed,
                        "copies": result.copies,
                    }
                )
                print(rows[-1], flush=True)
            KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = report(rows, options)
    (ROOT / "docs" / "results" / "exactness.md").write_text(text, encoding="utf-8")
    print(text)


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The result file."""
    lines = [
        "# Random jobs under random plans",
        "",
        header(
            f"python -m benchmarks.exactness --jobs {options.jobs} --steps {options.steps} "
            f"--seed {options.seed}",
            ["worker", "migration"],
            ".",
        ),
        "",
        f"{len(rows)} jobs: the seven families in turn, each precision, tied or not, with dropout",
        "and document masks or without, weight decay or not; two random plans of up to "
        f"{GPUS} ranks",
        "(one to three templates, depth 1 to 4, TP 1, 2 and 4, recomputation stage by stage), half",
        f"of the {options.steps} steps under each, the state moving between them.",
        "",
        "| precision | jobs | nearest to the limit: a loss differs by | limit | of the limit | "
        "beyond it |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for precision in PRECISIONS:
        own = [row for row in rows if row["precision"] == precision]
        worst = max(own, key=lambda row: row["worst"] / row["allowed"])
        shares = sorted(row["worst"] / row["allowed"] for row in own)
        beyond = sum(share > 1 for share in shares)
        lines.append(
            f"| {precision} | {len(own)} | {worst['worst']:.1e} ({worst['job']}) | "
            f"{worst['allowed']:.1e} | median {shares[len(shares) // 2]:.2f}, most "
            f"{shares[-1]:.2f} | {beyond} |"
        )
    copies = sum(row["copies"] for row in rows)
    lines += [
        "",
        f"- Allowed in fp32: {TOLERANCE:.0e} from plain torch at each step. In bf16 and fp16: "
        f"{SPREAD:g} times the",
        "  largest difference between plain processes with micro-batches of 1, 2 and 4.",
        f"- All {copies:,} copies of pieces (master, moments, low-precision weight) that several",
        "  ranks held after a step had the same bits; loss, norm and loss scale were the same on "
        "all ranks.",
        "- The state had the same digest before and after each change.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
