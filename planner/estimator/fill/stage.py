"""One stage of a template: its memory, how many blocks it can hold, and what they cost.

Invariant: bytes are those of `planner.cost.memory.stage_memory`, by the same rules.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.estimator import rules
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints, Tables


class Slot(NamedTuple):
    """A stage before its fill.

    Attributes:
        option: GPU type and TP degree.
        size: index of the micro-batch size.
        in_flight: micro-batches whose activations it keeps at once.
        ends: 2 for the first stage of a template, plus 1 for the last.
        replicas: of the template, for tilings and ZeRO.
    """

    option: int
    size: int
    in_flight: int
    ends: int
    replicas: int


@inlined
def slot_of(option: int, size: int, s: int, depth: int, most: int, replicas: int) -> Slot:
    """Stage `s` of a template of so many, whose replicas train `most` micro-batches each."""
    ends = (2 if s == 0 else 0) + (1 if s == depth - 1 else 0)
    return Slot(option, size, min(most, depth - s), ends, replicas)


@inlined
def parameters_of(
    t: Tables, option: int, is_first: int, is_last: int, dense: int, others: int
) -> float:
    """Parameters of one GPU of a stage, besides routed experts."""
    parameters = dense * t.block_numel[option, 0] + others * t.block_numel[option, 1]
    parameters += is_first * t.ends_numel[option, 0] + is_last * t.ends_numel[option, 1]
    return parameters - is_first * is_last * t.tied_numel[option]


@inlined
def blocks_seconds(
    t: Tables, option: int, size: int, variant: int, dense: int, others: int
) -> float:
    """Seconds of the blocks of a stage; infinite where the profile has no entry."""
    seconds = others * t.block_s[option, size, variant, 1]
    if dense:
        seconds += dense * t.block_s[option, size, variant, 0]
    return seconds


@jit
def peak_bytes(t: Tables, slot: Slot, variant: int, dense: int, others: int) -> float:
    """Peak bytes of one GPU of a stage with `dense` blocks of the first kind and `others`."""
    option, size, replicas = slot.option, slot.size, slot.replicas
    is_first, is_last = slot.ends // 2, slot.ends % 2
    parameters = parameters_of(t, option, is_first, is_last, dense, others)
    experts = others * t.expert_numel[option, variant]
    stepped = parameters + experts
    if t.zero:
        copies = rules.expert_copies(replicas, t.option_tp[option], t.ways[option, variant])
        stepped = rules.zero_cut(parameters, replicas) + rules.zero_cut(experts, copies)
    parameters += experts
    state = t.state_bytes
    weight, gradient, optimizer, transient = state[0], state[1], state[2], state[3]
    boundary = t.boundary_bytes[option, size]
    messages = 0 if is_first and is_last else t.messages
    bucket = min(parameters, t.bucket_numel)
    communication = rules.communication_bytes(bucket, gradient, boundary, messages)
    kept = dense * t.kept_bytes[option, size, variant, 0]
    kept += others * t.kept_bytes[option, size, variant, 1]
    kept += is_first * t.kept_ends_bytes[option, size, 0]
    kept += is_last * t.kept_ends_bytes[option, size, 1]
    working = 0.0
    if dense:
        working = t.working_bytes[option, size, variant, 0]
    if others:
        working = max(working, t.working_bytes[option, size, variant, 1])
    return rules.peak_bytes(
        rules.state_bytes(
            parameters * weight, parameters * gradient, stepped * optimizer, communication
        ),
        slot.in_flight * kept,
        boundary,
        is_last * t.logits_bytes[option, size],
        working,
        rules.transient_bytes(stepped, t.bucket_numel, transient),
    )


@jit
def _find_block_cap(t: Tables, slot: Slot, variant: int, dense: int) -> int:
    usable = t.usable_bytes[t.option_type[slot.option]]
    low, high = -1, t.layers - dense
    if peak_bytes(t, slot, variant, dense, high) <= usable:
        return high
    least = peak_bytes(t, slot, variant, dense, 0)
    if least > usable:
        return low
    low = 0
    if high > 1:  # bytes are linear nearly everywhere: guess, then close in
        last = peak_bytes(t, slot, variant, dense, high)
        guess = int((usable - least) / (last - least) * high)
        guess = min(max(guess, 0), high - 1)
        if peak_bytes(t, slot, variant, dense, guess) <= usable:
            low = guess
            if peak_bytes(t, slot, variant, dense, guess + 1) > usable:
                return guess
            low = guess + 1
        else:
            high = guess
    while high - low > 1:
        middle = (low + high) // 2
        if peak_bytes(t, slot, variant, dense, middle) <= usable:
            low = middle
        else:
            high = middle
    return low


@jit
def block_cap(t: Tables, slot: Slot, variant: int, dense: int) -> int:
    """The most blocks of the second kind beside `dense` of the first; -1 if not even none.

    What ZeRO cuts depends on the replicas; all else is found once.
    """
    if t.zero:
        return _find_block_cap(t, slot, variant, dense)
    cap = t.caps[slot.option, slot.size, variant, slot.in_flight, slot.ends, dense]
    if cap == -2:
        cap = _find_block_cap(t, slot, variant, dense)
        t.caps[slot.option, slot.size, variant, slot.in_flight, slot.ends, dense] = cap
    return cap


@inlined
def run_of(
    t: Tables, options: Ints, depth: int, first: int, copies: int, most: Ints
) -> tuple[int, int]:
    """The run of stages from `first` on that stand on one node: where it ends, and its GPUs.

    So many copies of each stand beside each other where a node has room for them, which is `most`
    GPUs [T] by class.
    """
    kind = t.option_type[options[first]]
    gpus = copies * t.option_tp[options[first]]
    stop = first + 1
    while stop < depth and t.option_type[options[stop]] == kind:
        more = copies * t.option_tp[options[stop]]
        if gpus + more > most[kind]:
            break
        gpus += more
        stop += 1
    return stop, gpus


@jit
def fixed_seconds(
    t: Tables, options: Ints, depth: int, size: int, copies: int, most: Ints, out: Floats
) -> None:
    """Seconds of each stage [D] besides its blocks: ends and messages.

    So many copies of a stage, of as many replicas, stand on one node where it has room for them,
    with `most` GPUs [T] of a class.  Neighbouring stages then share a node only where it has room
    for the copies of both.
    """
    for s in range(depth):
        out[s] = 0.0
    out[0] += t.ends_s[options[0], size, 0]
    out[depth - 1] += t.ends_s[options[depth - 1], size, 1]
    before_s = 0.0  # over the NIC of the node before
    first = 0  # stage of those on one node
    while first < depth:
        stop, gpus = run_of(t, options, depth, first, copies, most)
        inside_s = t.inside_s[t.option_type[options[first]], size]
        for s in range(first + 1, stop):
            out[s - 1] += inside_s
            out[s] += inside_s
        sending = sending_gpus(t, options, depth, first, stop, copies, gpus)
        if first > 0:
            edge = max(before_s, t.port_s[options[first], size, sending])
            out[first - 1] += edge
            out[first] += edge
        if stop < depth:
            before_s = t.port_s[options[stop - 1], size, sending]
        first = stop


@inlined
def sending_gpus(
    t: Tables, options: Ints, depth: int, first: int, stop: int, copies: int, gpus: int
) -> int:
    """GPUs of a node that send to others where it is full of runs of so many GPUs like this one.

    The run has so many copies of the stages from `first` on, and `stop` no more.  Where copies
    leave a rest of the node, other stages take it, and all send.
    """
    most = t.node_gpus[t.option_type[options[first]]]
    if copies > 1 and most % gpus:
        return most
    own = 0
    if first > 0:
        own += copies * t.option_tp[options[first]]
    if stop < depth and (first == 0 or stop - first > 1):
        own += copies * t.option_tp[options[stop - 1]]
    return min(most, own * (most // gpus))
