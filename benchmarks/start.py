"""From Enter to the end of the first step: `heddle train`, beside a plain loop of transformers.

    python -m benchmarks.start [--pairs N]

Both train the tiny model on bytes of Python's standard library; the profile of this machine is
known, and so is the data set.  The two take turns, so that other work on the machine meets both.
Writes docs/results/start.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.pages import ROOT, header

PAIRS = 5
GOAL = 1.5
STEPS, GLOBAL_BATCH, LENGTH = 3, 8, 128
JOB = {
    "apiVersion": "heddle.dev/v1alpha1",
    "kind": "HeddleJob",
    "metadata": {"name": "start"},
    "spec": {
        "model": {"name": "tiny-llama"},
        "data": {"builtin": "text"},
        "training": {"globalBatch": GLOBAL_BATCH, "sequenceLength": LENGTH},
        "steps": STEPS,
    },
}
PLAIN = f"""
import ast, time
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4,
))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = np.frombuffer(open(ast.__file__, "rb").read(), dtype=np.uint8)
tokens = torch.from_numpy(text[: {GLOBAL_BATCH * LENGTH}].astype(np.int64))
batch = tokens.reshape({GLOBAL_BATCH}, {LENGTH})
model(input_ids=batch, labels=batch).loss.backward()
optimizer.step()
print(time.monotonic())
"""


def plain_s() -> float:
    """Seconds of a plain loop."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True
    )  # fmt: skip
    return float(done.stdout.split()[-1]) - began_s


def heddle_s(folder: Path) -> float:
    """Seconds of `heddle train`: the records have the end of each step by the same clock."""
    job, output = folder / "job.yaml", folder / "output"
    job.write_text(yaml.safe_dump(JOB))
    began_s = time.monotonic()
    subprocess.run(
        [Path(sys.executable).with_name("heddle"), "train", job, "--headless", "--fresh",
         "--output-path", output],
        capture_output=True, check=True,
    )  # fmt: skip
    with (output / "measurements" / "steps-epoch-0001.jsonl").open() as rows:
        first = json.loads(rows.readline())
    return float(first["end_s"]) - began_s


def report(ours_s: list[float], plain: list[float]) -> str:
    """The page."""
    ratio = statistics.median(a / b for a, b in zip(ours_s, plain, strict=True))
    rows = "\n".join(
        f"| {what} | {statistics.median(found):.1f} | {min(found):.1f} to {max(found):.1f} |"
        for what, found in (("`heddle train`", ours_s), ("a plain loop of transformers", plain))
    )
    return f"""# From Enter to the first step

{header(f"python -m benchmarks.start --pairs {len(plain)}", ["heddle", "worker"], ",")}
shared with other work.

Seconds from the start of the process to the end of the first step. Both train the tiny model on
bytes; Heddle on all cores, with the profile of the machine and the data set of earlier runs. The
two take turns.

| what | median, s | least to most, s |
| --- | --- | --- |
{rows}

Heddle takes {ratio:.2f} times as long (median of {len(plain)} pairs; the goal is {GOAL}).
"""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Measure the start of a run.")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        ours: Callable[[], float] = lambda: heddle_s(Path(folder))  # noqa: E731
        ours(), plain_s()  # which fill the caches
        found = [(ours(), plain_s()) for _ in range(pairs)]
    text = report([a for a, _ in found], [b for _, b in found])
    print(text)
    (ROOT / "docs" / "results" / "start.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
