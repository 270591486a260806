"""The compositions that policies are measured on; no policy was trained on any of them.

They are the committed sets of `profiles/compositions`: the paper's, the search benchmark's up to
512 GPUs, the cluster that grows under the job, and the demo's.
"""

from __future__ import annotations

from dataclasses import replace

from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.training.composition_sets import ListedComposition, committed_sets

DENSE = ("llama3-8b", "qwen3-32b")
MODELS = (
    *DENSE,
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3-like",
    "qwen3-64b",
    "gpt-neo-2.7b",
    "tiny-llama",
)
LARGE = "large-"  # A100-80 and H100 in equal counts, which the paper plans for Qwen3-64B
MOST_GPUS = 1000
SETS_OF = {"gpt-neo-2.7b": ("hardware",), "tiny-llama": ("demo",)}


def unseen(model: str) -> tuple[ListedComposition, ...]:
    """The compositions of one model, each with its batch."""
    batch = usual_workload(find_model(model)).global_batch
    sets = committed_sets()
    rows = [row for name in SETS_OF.get(model, ("paper", "benchmark")) for row in sets[name]]
    if model == "qwen3-64b":
        rows = [row for row in rows if row.name.startswith(LARGE)]
    return tuple(
        replace(row, batch=row.batch or batch) for row in rows if row.composition.gpus <= MOST_GPUS
    )


def workload_of(model: str, listed: ListedComposition) -> Workload:
    """Training of the model as usual, with that composition's batch."""
    usual = usual_workload(find_model(model))
    return replace(usual, global_batch=listed.batch or usual.global_batch)
