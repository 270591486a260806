"""What a reader of measured rows hands on, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.cluster.composition import Composition
from planner.cluster.hardware import GpuHardware
from planner.model.shape import ModelShape
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.profiles.generator import generate
from planner.profiles.profile import Profile

Group = tuple[int, int, str]  # GPUs, global batch, model: its plans compete


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A measured plan as its file tells it; see `planner.validation.measured_sets.MeasuredPlan`."""

    plan: Plan
    workload: Workload
    composition: Composition
    profile: Profile
    seconds: float
    memory_bytes: int | None
    group: Group


def profile_of(
    model: ModelShape, sequence_length: int, precision: str, gpus: tuple[GpuHardware, ...]
) -> Profile:
    """The modelled profile of that hardware; equal requests share their entries."""
    return _profile(model, sequence_length, precision, _Gpus(gpus))


class _Gpus(tuple[GpuHardware, ...]):
    """Hardware as a key: its rings are a mapping, so names and numbers stand for it."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(gpu.name for gpu in self))


@lru_cache(maxsize=64)
def _profile(model: ModelShape, length: int, precision: str, gpus: _Gpus) -> Profile:
    return generate(model, length, precision, gpus)
