"""Tables of the estimator: a profile as arrays, for one workload on one composition.

Axes: O options (GPU type, TP), Z micro-batch sizes, V variants of a stage (recomputation and expert
tiling), K = 2 kinds of blocks (the first `dense` blocks of the model, then all others), T node
classes (GPU type, GPUs of a node, speed, price, NIC), E = 2 ends (embedding, head), L blocks, G
GPUs of the largest node, Q limits on GPUs.
Invariant: seconds are infinite where the profile has no entry.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.estimator.by_reference import by_reference

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

MAX_TEMPLATES = 8
MAX_DEPTH = 32
MAX_FILLINGS = 40


@by_reference
class Tables(NamedTuple):
    """All that the price of a plan depends on, placement apart.

    Attributes:
        batch: B.
        layers: L.
        dense: blocks of the first kind.
        zero: ZeRO stage.
        option_type: [O] index of its GPU type.
        option_tp: [O] its TP degree.
        room: [O] GPUs of the composition that TP groups of that degree could take, as far as limits
            allow them to a plan.
        node_gpus: [T] GPUs of the largest node.
        nodes: [T, G + 1] nodes by their GPUs.
        gpu_price: [T] money per GPU and hour; 0 where none is known.
        paid_gpus: [T] GPUs that are paid together: of a node, of all its hosts of the class.
        sizes: [Z] micro-batch sizes, ascending.
        variants: [O] number of variants.
        ways: [O, V] EP x ETP: into how many parts experts are cut.
        block_s: [O, Z, V, K] one block, both passes with all communication.
        ends_s: [O, Z, E] embedding and head.
        port_s: [O, Z, G + 1] activation and gradient to another node, by how many GPUs of the node
            send at once; of two ends the slower counts.
        inside_s: [T, Z] the same inside a node.
        kept_bytes: [O, Z, V, K] activations of one block and one micro-batch.
        kept_ends_bytes: [O, Z, E] of embedding and head.
        working_bytes: [O, Z, V, K] what one block has besides while it is recomputed.
        logits_bytes: [O, Z] of the last stage.
        boundary_bytes: [O, Z] one activation between two stages.
        block_numel: [O, K] parameters of a block besides routed experts, on one GPU.
        expert_numel: [O, V] routed experts of a block of the second kind, on one GPU.
        ends_numel: [O, E] of embedding and head.
        tied_numel: [O] of these, what a stage with both ends holds once; 0 where nothing is tied.
        counted_numel: parameters of a block of the second kind that are counted, not trained.
        state_bytes: [4] of a parameter: weight, gradient, optimizer, transient at the step.
        bucket_numel: most parameters that are copied for the gradient sum, or stepped at a time.
        messages: of a micro-batch, that a stage with a neighbour holds on their way.
        usable_bytes: [T] of a GPU.
        optimizer_s: [T, 2] latency, and seconds per parameter.
        sharded_bytes: [L + 2] gradients of each layer that TP cuts, besides routed experts.
        whole_bytes: [L + 2] gradients that it leaves whole.
        tied_bytes: gradients of the weight that embedding and head share, in neither of these.
        nic: [T, 2] latency and seconds per byte of a GPU's share of its node's NIC.
        ring: [T, G + 1, 2] latency and seconds per byte of a ring of so many GPUs inside a node.
        stays_inside: 1 if all gradients are summed inside nodes.
        rings: 1 if GPUs of a node that sum the same pieces send them once.
        spreads_experts: 1 if experts may be tiled; then copies of a stage stand beside each other.
        both_ways: 1 if a plan may be placed so as well, though it spreads no experts.
        caps: [O, Z, V, D + 1, 4, dense + 1] what `stage.block_cap` has found so far, by in-flight
            count and by which ends the stage has; -2 where it was not asked yet.
        min_replicas: so many pipelines at least, for the nodes that must hold every piece.
        limit: [Q] GPUs that a plan may use of some classes together, at most; none where `room`
            says it all.
        is_limited: [Q, T] 1 if GPUs of a class count in that limit.
    """

    batch: int
    layers: int
    dense: int
    zero: int
    option_type: Ints
    option_tp: Ints
    room: Ints
    node_gpus: Ints
    nodes: Ints
    gpu_price: Floats
    paid_gpus: Ints
    sizes: Ints
    variants: Ints
    ways: Ints
    block_s: Floats
    ends_s: Floats
    port_s: Floats
    inside_s: Floats
    kept_bytes: Floats
    kept_ends_bytes: Floats
    working_bytes: Floats
    logits_bytes: Floats
    boundary_bytes: Floats
    block_numel: Floats
    expert_numel: Floats
    ends_numel: Floats
    tied_numel: Floats
    counted_numel: float
    state_bytes: Floats
    bucket_numel: float
    messages: int
    usable_bytes: Floats
    optimizer_s: Floats
    sharded_bytes: Floats
    whole_bytes: Floats
    tied_bytes: float
    nic: Floats
    ring: Floats
    stays_inside: int
    rings: int
    spreads_experts: int
    both_ways: int
    caps: NDArray[np.int16]
    min_replicas: int
    limit: Ints
    is_limited: Ints
