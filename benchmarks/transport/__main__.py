"""How fast state gets from one rank to another: by Heddle, by less, and through the disk.

    python -m benchmarks.transport [--quick]

Two ranks of this machine, gloo over loopback.  Writes docs/results/transport.md and a picture.
There is no goal.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from benchmarks.pages import header
from benchmarks.two_ranks import first_answer

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
BLOCKS = (2, 8, 26)  # 80 MB, 311 MB, 1.0 GB with the moments
QUICK = (2,)
PORT = 29_513
LIMIT_S = 480.0
Found = dict[str, list[float]]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest; writes nothing")
    quick = parser.parse_args().quick
    found = measure(QUICK if quick else BLOCKS)
    text = report(found)
    print(text)
    if not quick:
        (RESULTS / "transport.md").write_text(text, encoding="utf-8")
        picture(found, RESULTS / "transport.svg")


def measure(blocks: tuple[int, ...]) -> list[Found]:
    """Seconds of every try, as the receiver saw them; and `bytes`."""
    module = "benchmarks.transport.rank"
    found: list[Found] = first_answer(module, PORT, list(blocks), LIMIT_S)
    return found


def middle(one: Found, way: str) -> float:
    """Seconds of the median try."""
    return statistics.median(one[way])


def rate(one: Found, way: str) -> float:
    """Bytes a second of the median try."""
    return one["bytes"][0] / middle(one, way)


def report(found: list[Found]) -> str:
    """The result file."""
    ways = [way for way in found[0] if way != "bytes"]
    lines = [
        "# Handing state from rank to rank",
        "",
        header("python -m benchmarks.transport", ["migration"], ", shared with other work."),
        "",
        "Two ranks; the state of a model (weights and moments, fp32) goes from one to the other.",
        f"GB/s of the median of {len(found[0][ways[0]])} tries, which take turns in one run; in "
        "brackets the slowest and the fastest.",
        "",
        "| MB | " + " | ".join(ways) + " |",
        "| --- |" + " --- |" * len(ways),
    ]
    for one in found:
        size = one["bytes"][0]
        cells = [
            f"{rate(one, way) / 1e9:.2f} ({size / max(one[way]) / 1e9:.2f} to "
            f"{size / min(one[way]) / 1e9:.2f})"
            for way in ways
        ]
        lines.append(f"| {size / 1e6:.0f} | " + " | ".join(cells) + " |")
    last = found[-1]
    through_disk = sum(middle(last, way) for way in ways if way.startswith("DCP"))
    ours = middle(last, "Heddle")
    lines += [
        "",
        "![rates](transport.svg)",
        "",
        "- There is no goal: this is what a change of plan has to work with.",
        "- Heddle's seconds are those of `exchange_state`: plans are compared, the state is sent",
        "  from the tensors that train and received into those of the next engine, and both",
        "  ends take the fingerprint of every byte. The columns beside it move bytes without any.",
        f"- The largest state takes {ours / middle(last, 'bare gloo'):.2f} times as long as by",
        f"  bare gloo, {ours / middle(last, 'raw socket'):.2f} times as long as by a raw socket.",
        "- Through the disk (torch's distributed checkpoint, fsynced, out of the page cache) it",
        f"  takes {through_disk / ours:.1f} times as long as by Heddle: one rank writes, then the",
        "  other one reads.",
        "- Both ranks, and whatever else ran, share the cores: rates say less than ratios.",
    ]
    return "\n".join(lines) + "\n"


def picture(found: list[Found], path: Path) -> None:
    """Rates by size."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for way in found[0]:
        if way != "bytes":
            sizes = [one["bytes"][0] / 1e9 for one in found]
            axes.plot(sizes, [rate(one, way) / 1e9 for one in found], "o-", label=way)
    axes.set_xlabel("GB of state")
    axes.set_ylabel("GB/s")
    axes.set_yscale("log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
