"""The rules of the cost model, each a plain function of numbers.

The evaluator calls them as Python; `planner.estimator.rules` compiles this very source, and the
estimator's tables are built by them.  So a rule is changed here alone.
Units: seconds, bytes, counts; all sizes are of one GPU unless a name says otherwise.
Source: Heddle, section 5.2 (iteration time, memory) and 5.3 (fill, sharing of the batch).
"""

from __future__ import annotations

import math
from typing import TypeVar

Number = TypeVar("Number", int, float)
SAME_MICRO_BATCH = 1e-9  # of a micro-batch: times that lie no further apart are one


def pipeline_seconds(micro_batches: int, slowest_s: float, sum_s: float) -> float:
    """Time of a replica under 1F1B: (M - 1) max(t) + sum(t), t the seconds of its stages.

    Source: Heddle, section 5.2.
    """
    return (micro_batches - 1) * slowest_s + sum_s


def micro_batches_within(limit_s: float, slowest_s: float, sum_s: float, most: int) -> int:
    """The most micro-batches, up to `most`, that a replica trains in the time; 0 if none.

    The inverse of `pipeline_seconds`.
    """
    more = math.floor((limit_s - sum_s) / slowest_s + SAME_MICRO_BATCH)
    return max(0, min(most, 1 + more))


def boundary_seconds(message_s: float) -> float:
    """Seconds that an edge adds to both its stages: the activation there, the gradient back.

    Source: Heddle, section 5.2; charged to both ends.
    """
    return 2.0 * message_s


def nic_share(at_once: float, together: float) -> float:
    """By how many a NIC is shared: GPUs of the node that send at once, `together` as one of them.

    Together send the GPUs of a TP group, a slice of a message each, and the members of a ring.
    """
    return max(1.0, at_once / together)


def ring_factor(members: float) -> float:
    """How often a ring all-reduce sends what each member holds: 2 (R-1) / R."""
    return 2 * (members - 1) / members


def bucket_messages(num_bytes: float, bucket_bytes: float) -> int:
    """Messages that a bucket of so many bytes sends, one after the other."""
    return max(1, math.ceil(num_bytes / bucket_bytes))


def gather_factor(members: int) -> float:
    """Share of a message that each member of a ring all-gather receives: (R-1) / R."""
    return (members - 1) / members


def broadcast_factor(members: float) -> float:
    """How often a ring sends what each of its members broadcasts: once over each link."""
    return 1.0 if members > 1 else 0.0


def all_to_all_factor(members: int, inside: int) -> float:
    """Share of its tokens that a member of an all-to-all sends beyond the `inside` nearest."""
    return (members - inside) / members


def exchanged_passes(recomputes_all: bool) -> int:
    """Passes of a block in which tokens go to experts and back: full recomputation adds one."""
    return 3 if recomputes_all else 2


def optimizer_seconds(parameters: float, latency_s: float, s_per_parameter: float) -> float:
    """Optimizer step of a rank that keeps the optimizer state of so many parameters."""
    return latency_s + s_per_parameter * parameters


def zero_cut(parameters: Number, copies: int) -> Number:
    """Parameters whose optimizer state a rank keeps, cut by ZeRO 1 over that many copies."""
    return -(-parameters // copies)


def expert_copies(replicas: int, tp: int, ways: int) -> int:
    """EDP: ranks of a stage over all its replicas that hold the same of `ways` = EP x ETP parts."""
    return max(1, replicas * tp // ways)


def communication_bytes(
    bucket: Number, gradient_bytes: Number, boundary_bytes: Number, messages: int
) -> Number:
    """Buffers: a copied bucket of gradients, and messages between stages."""
    return bucket * gradient_bytes + messages * boundary_bytes


def state_bytes(
    weights: Number, gradients: Number, optimizer: Number, communication: Number
) -> Number:
    """Bytes that stay from step to step."""
    return weights + gradients + optimizer + communication


def transient_bytes(stepped: Number, bucket: Number, bytes_per_parameter: Number) -> Number:
    """Further bytes of the optimizer step, a bucket at a time."""
    return min(stepped, bucket) * bytes_per_parameter


def peak_bytes(
    state: Number,
    activations: Number,
    boundary: Number,
    logits: Number,
    working: Number,
    transient: Number,
) -> Number:
    """The larger of what a micro-batch and what the optimizer step need besides the state.

    Source: Heddle, section 5.2 (memory validation).
    """
    return max(state + activations + boundary + logits + working, state + transient)
