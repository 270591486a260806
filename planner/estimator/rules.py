"""The rules of `planner.cost.formulas` for the estimator, compiled from their very source."""

from __future__ import annotations

from planner.cost import formulas
from planner.estimator.jit import inlined

broadcast_factor = inlined(formulas.broadcast_factor)
bucket_messages = inlined(formulas.bucket_messages)
communication_bytes = inlined(formulas.communication_bytes)
expert_copies = inlined(formulas.expert_copies)
micro_batches_within = inlined(formulas.micro_batches_within)
nic_share = inlined(formulas.nic_share)
optimizer_seconds = inlined(formulas.optimizer_seconds)
peak_bytes = inlined(formulas.peak_bytes)
pipeline_seconds = inlined(formulas.pipeline_seconds)
ring_factor = inlined(formulas.ring_factor)
state_bytes = inlined(formulas.state_bytes)
transient_bytes = inlined(formulas.transient_bytes)
zero_cut = inlined(formulas.zero_cut)
