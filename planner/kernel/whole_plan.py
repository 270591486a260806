"""What a whole plan costs: its fillings chosen together, the batch shared, gradients summed.

Invariant: the seconds of the pipelines are exact for stages placed as `stage.fixed_seconds` thinks;
gradient sums assume that every GPU of a node sends at once.  `planner.cost` has the last word.
Source: Heddle, sections 5.2 and 5.3.   Legend: n replicas, b micro-batch, M micro-batches.
"""

from __future__ import annotations

import math

from planner.kernel.bag import Bag, pipelines_of
from planner.kernel.jit import jit
from planner.kernel.tables import Tables

STEPS = 26  # of the bisection: to a hundred-millionth of its bracket
GIVE_UP = 60  # doublings of the bracket


@jit
def micro_batches_within(bag: Bag, k: int, f: int, limit_s: float) -> int:
    """The most micro-batches that a replica with that filling finishes in the time."""
    if bag.sum_s[k, f] > limit_s:
        return 0
    more = int((limit_s - bag.sum_s[k, f]) / bag.tau_s[k, f] + 1e-9)
    return min(bag.most[k, f], 1 + more)


@jit
def choose(t: Tables, bag: Bag, k: int, limit_s: float, largest: int) -> int:
    """Samples that a replica of slot `k` trains in the time, its best filling in `chosen`.

    Fillings with more than `largest` samples in a micro-batch stay out.
    """
    best = 0
    for f in range(bag.filling_count[k, 0]):
        b = t.sizes[bag.size[k, f]]
        if b > largest:
            continue
        samples = b * micro_batches_within(bag, k, f, limit_s)
        if samples > best:
            best = samples
            bag.chosen[k] = f
    return best


@jit
def samples_within(t: Tables, bag: Bag, limit_s: float, largest: int) -> int:
    """Samples that all replicas train in the time; 0 if one of them trains none."""
    total = 0
    for k in range(bag.count[0]):
        samples = choose(t, bag, k, limit_s, largest)
        if samples == 0:
            return 0
        total += samples * bag.replicas[k]
    return total


@jit
def shares_exactly(t: Tables, bag: Bag, limit_s: float) -> bool:
    """Whether the replicas can train B samples, no fewer and no more, each at least one batch.

    Greedy from the largest micro-batch: exact where sizes divide each other, as powers of two do.
    """
    left = t.batch
    for k in range(bag.count[0]):
        left -= bag.replicas[k] * t.sizes[bag.size[k, bag.chosen[k]]]
    if left < 0:
        return False
    for size in range(len(t.sizes) - 1, -1, -1):
        more = 0
        for k in range(bag.count[0]):
            f = bag.chosen[k]
            if bag.size[k, f] == size:
                more += bag.replicas[k] * (micro_batches_within(bag, k, f, limit_s) - 1)
        left -= min(more, left // t.sizes[size]) * t.sizes[size]
    return left == 0


@jit
def last_end(bag: Bag, limit_s: float) -> float:
    """When the last micro-batch ends that still ends within the time."""
    end_s = 0.0
    for k in range(bag.count[0]):
        f = bag.chosen[k]
        count = micro_batches_within(bag, k, f, limit_s)
        end_s = max(end_s, bag.sum_s[k, f] + (count - 1) * bag.tau_s[k, f])
    return end_s


@jit
def pipeline_seconds_with(t: Tables, bag: Bag, largest: int) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot."""
    low_s = 0.0
    for k in range(bag.count[0]):
        first_s = math.inf
        for f in range(bag.filling_count[k, 0]):
            if t.sizes[bag.size[k, f]] <= largest:
                first_s = min(first_s, bag.sum_s[k, f])
        low_s = max(low_s, first_s)
    if low_s == math.inf:
        return math.inf
    high_s = low_s
    if samples_within(t, bag, low_s, largest) < t.batch:
        doublings = 0
        while samples_within(t, bag, high_s, largest) < t.batch:
            low_s = high_s
            high_s *= 2
            doublings += 1
            if doublings > GIVE_UP:
                return math.inf
        for _ in range(STEPS):
            middle_s = 0.5 * (low_s + high_s)
            if samples_within(t, bag, middle_s, largest) < t.batch:
                low_s = middle_s
            else:
                high_s = middle_s
        samples_within(t, bag, high_s, largest)
    if not shares_exactly(t, bag, high_s):
        return math.inf
    return last_end(bag, high_s)


@jit
def pipeline_seconds(t: Tables, bag: Bag) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot.

    Every replica trains at least one micro-batch, so that large ones may be too many samples.
    """
    seconds = pipeline_seconds_with(t, bag, t.batch)
    largest = t.sizes[len(t.sizes) - 1]
    while seconds == math.inf and largest > 1:
        largest //= 2
        seconds = pipeline_seconds_with(t, bag, largest)
    return seconds


@jit
def sync_seconds(t: Tables, bag: Bag) -> float:
    """The largest gradient sum of any rank, as `planner.gradient_sync` with all nodes full."""
    pipelines = pipelines_of(bag)
    if pipelines == 1:
        return 0.0
    ring = 2.0 * (pipelines - 1) / pipelines
    worst_s = 0.0
    for k in range(bag.count[0]):
        start = 0
        for s in range(bag.depth[k]):
            stop = start + bag.blocks[k, bag.chosen[k], s]
            first = start + 1 if s else 0
            last = stop if s < bag.depth[k] - 1 else t.layers + 1
            seconds = 0.0
            tp = t.option_tp[bag.options[k, s]]
            layer = first
            while layer <= last:
                # the holders of this layer, and how far they stay the same
                until = last
                per_byte = 0.0
                latency = 0.0
                finest = tp
                for j in range(bag.count[0]):
                    cut = 0
                    for r in range(bag.depth[j]):
                        cut += bag.blocks[j, bag.chosen[j], r]
                        held = cut if r < bag.depth[j] - 1 else t.layers + 1
                        if layer <= held:
                            option = bag.options[j, r]
                            kind = t.option_type[option]
                            per_byte = max(per_byte, t.nic[kind, 1])
                            latency = max(latency, t.nic[kind, 0])
                            finest = max(finest, t.option_tp[option])
                            until = min(until, held)
                            break
                whole = 0.0
                cut_bytes = 0.0
                for one in range(layer, until + 1):
                    whole += t.whole_bytes[one]
                    cut_bytes += t.sharded_bytes[one]
                seconds += ring * (whole + cut_bytes / tp) * per_byte
                seconds += latency * (finest // tp)
                layer = until + 1
            worst_s = max(worst_s, seconds)
            start = stop
    return worst_s


@jit
def optimizer_seconds(t: Tables, bag: Bag) -> float:
    """The longest optimizer step of any rank; experts count as TP cuts them."""
    longest_s = 0.0
    for k in range(bag.count[0]):
        start = 0
        for s in range(bag.depth[k]):
            option = bag.options[k, s]
            kind = t.option_type[option]
            stop = start + bag.blocks[k, bag.chosen[k], s]
            dense = min(stop, t.dense) - min(start, t.dense)
            held = dense * t.block_numel[option, 0]
            held += (stop - start - dense) * (t.block_numel[option, 1] + t.expert_numel[option, 0])
            if s == 0:
                held += t.ends_numel[option, 0]
            if s == bag.depth[k] - 1:
                held += t.ends_numel[option, 1]
            if t.zero:
                held /= bag.replicas[k]
            longest_s = max(longest_s, t.optimizer_s[kind, 0] + t.optimizer_s[kind, 1] * held)
            start = stop
    return longest_s


@jit
def iteration_seconds(t: Tables, bag: Bag) -> float:
    """Pipelines, gradient sum and optimizer step; infinite if the batch cannot be shared."""
    seconds = pipeline_seconds(t, bag)
    if seconds == math.inf:
        return seconds
    return seconds + sync_seconds(t, bag) + optimizer_seconds(t, bag)


@jit
def price_per_hour(t: Tables, bag: Bag) -> float:
    """Money for the nodes in use, idle GPUs of a node included."""
    total = 0.0
    for kind in range(len(t.node_gpus)):
        used = 0
        for k in range(bag.count[0]):
            for s in range(bag.depth[k]):
                if t.option_type[bag.options[k, s]] == kind:
                    used += bag.replicas[k] * t.option_tp[bag.options[k, s]]
        nodes = -(-used // t.node_gpus[kind])
        total += nodes * t.node_gpus[kind] * t.gpu_price[kind]
    return total
