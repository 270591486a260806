"""Measure the operator at a thousand nodes, on a real API server and etcd without kubelets.

Nodes, kubelets and agents are emulated in one process beside it.  Prints a table with the goals and
writes it into its section of `docs/results/operator_scale.md`.
`python -m benchmarks.operator_scale [--nodes N] [--jobs N]`; needs root and `make
kube-assets`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.operator_scale.control_plane import measure
from benchmarks.operator_scale.document import report, with_section
from benchmarks.operator_scale.sizes import Sizes
from benchmarks.pages import ROOT

WITHIN_S = 280.0


def main() -> None:
    """Run, print and write."""
    usual = Sizes()
    parser = argparse.ArgumentParser(description="Measure the operator at a thousand nodes.")
    for name, what in (
        ("nodes", "nodes of 8 GPUs"),
        ("jobs", "jobs of 2 nodes that train"),
        ("foreign-pods", "pods of others, without GPUs"),
        ("large-nodes", "nodes of a job that starts while the others train; 0: none does"),
        ("largest-gpus", "GPUs of a second such job; 0: there is none"),
        ("moves", "jobs that lose a node by a drain, and as many by a deletion"),
    ):
        default = getattr(usual, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=int, default=default, help=what)
    parser.add_argument(
        "--within-s", type=float, default=WITHIN_S, help="what is not measured by then is left out"
    )
    path = ROOT / "docs" / "results" / "operator_scale.md"
    parser.add_argument("--output", type=Path, default=path)
    options = vars(parser.parse_args())
    within_s, output = options.pop("within_s"), options.pop("output")
    sizes = Sizes(**options)
    text = report(sizes, measure(sizes, within_s))
    print(text)
    before = output.read_text() if output.exists() else ""
    output.write_text(with_section(before, text))


if __name__ == "__main__":
    main()
