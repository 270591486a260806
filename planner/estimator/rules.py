"""The rules of `planner.cost.formulas` for the estimator, compiled from their very source."""

from __future__ import annotations

from planner.cost.formulas import micro_batches_within as _micro_batches_within
from planner.cost.formulas import optimizer_seconds as _optimizer_seconds
from planner.cost.formulas import pipeline_seconds as _pipeline_seconds
from planner.cost.formulas import ring_factor as _ring_factor
from planner.cost.formulas import zero_cut as _zero_cut
from planner.estimator.jit import inlined

micro_batches_within = inlined(_micro_batches_within)
optimizer_seconds = inlined(_optimizer_seconds)
pipeline_seconds = inlined(_pipeline_seconds)
ring_factor = inlined(_ring_factor)
zero_cut = inlined(_zero_cut)
