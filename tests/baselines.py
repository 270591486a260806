"""Small questions to the baselines: LLaMA-3-8B with a few blocks, on a few GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from benchmarks.baselines.interface import Question
from planner.cluster.composition import Composition
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.profile import Profile, load_profile


@cache
def _profile() -> Profile:
    return load_profile("llama3-8b")


def question(text: str, layers: int = 4, batch: int = 8, seed: int = 0) -> Question:
    """`h100=1x2,a100-40=1x2` and so many blocks, trained on so many samples a step."""
    model = replace(find_model("llama3-8b"), layers=layers)
    workload = Workload(
        model=model, global_batch=batch, sequence_length=2048, precision="fp16", memory="paper"
    )
    return Question(workload, Composition.from_text(text), _profile(), seed)
