"""The cells of the paper's figures: a model on a composition.

Compositions are those of `profiles/compositions` (`paper.txt`, `hardware.txt`), which say where the
paper's text gives less than a composition and the line is reconstructed.  The paper's compositions
for models with experts are not in its text; those here have the same number of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.baselines.interface import Question
from planner.errors import InvalidRequest
from planner.model.catalogue import find_model
from planner.model.workload import Workload, usual_workload
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.training.composition_sets import ListedComposition, read_composition_file
from planner.wording import did_you_mean

DENSE = ("llama3-8b", "qwen3-32b")
PEERS = ("amp", "espresso", "hexiscale", "metis", "sailor")


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a composition."""

    model: str
    listed: ListedComposition

    @property
    def name(self) -> str:
        """As files and commands call it."""
        return f"{self.model}-{self.listed.name}"

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.listed.composition.gpus

    def question(self, seed: int = 0) -> Question:
        """What every planner is asked."""
        workload = _workload(self.model, self.listed.batch)
        return Question(workload, self.listed.composition, _profile(self.model), seed)


@cache
def _profile(model: str) -> Profile:
    return find_profile(usual_workload(find_model(model)))


def _workload(model: str, batch: int | None) -> Workload:
    usual = usual_workload(find_model(model))
    return replace(usual, global_batch=batch or usual.global_batch)


@cache
def _listed() -> dict[str, ListedComposition]:
    listed = [*read_composition_file(Path("paper")), *read_composition_file(Path("hardware"))]
    rows = {one.name: one for one in listed}
    text = "a100-80=20x4,h100=20x4"
    rows["large-160"] = ListedComposition("large-160", text, 2048, "reconstructed")
    return rows


def cell_of(model: str, name: str) -> Cell:
    """A model on a composition of that name; KeyError where there is none."""
    return Cell(model, _listed()[name])


FIGURES: dict[str, tuple[tuple[str, str], ...]] = {
    "uniform": tuple(
        (model, name)
        for model in DENSE
        for name in ("two-64", "two-128", "two-256", "three-128", "three-256", "three-512")
    ),
    "non-uniform": tuple((model, f"ls{n}") for model in DENSE for n in range(1, 6)),
    "four-types": tuple(("llama3-8b", f"four-{gpus}") for gpus in (48, 96, 112, 168, 192)),
    "large-model": tuple(("qwen3-64b", f"large-{gpus}") for gpus in (128, 256, 512)),
    "growth": tuple(("gpt-neo-2.7b", f"grow-{gpus}") for gpus in (3, 7, 11, 15, 19)),
    "experts": (
        *(("mixtral-8x7b", name) for name in ("two-64", "four-160", "two-256")),
        *(("qwen3-30b-a3b", name) for name in ("two-64", "four-160", "two-256")),
        *(("deepseek-v3-like", f"large-{gpus}") for gpus in (160, 256, 512)),
    ),
}


def cells_of(figure: str) -> tuple[Cell, ...]:
    """The cells of a figure.

    Raises:
        InvalidRequest: there is no such figure.
    """
    if figure not in FIGURES:
        raise InvalidRequest(
            f"figure {figure!r} is unknown{did_you_mean(figure, FIGURES)}; the figures are "
            f"{', '.join(FIGURES)}",
            field="figure",
            code="Unknown",
        )
    return tuple(cell_of(model, name) for model, name in FIGURES[figure])
