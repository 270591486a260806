"""What a whole plan costs: its fillings chosen together, the batch shared, gradients summed.

Invariant: the seconds of the pipelines are exact for stages placed as `stage.fixed_seconds` thinks,
those of the optimizer always.  `planner.cost` has the last word.
Source: Heddle, sections 5.2 and 5.3.   Legend: n replicas, b micro-batch, M micro-batches.
"""

from __future__ import annotations

import math

from planner.kernel.bag import Bag
from planner.kernel.bench import PriceBench, StageExperts
from planner.kernel.by_stage import by_stage_seconds
from planner.kernel.gradient_sync import sync_seconds
from planner.kernel.jit import inlined, jit
from planner.kernel.packing import packing_seconds
from planner.kernel.stage_experts import has_experts, look_at_experts
from planner.kernel.tables import Ints, Tables

ROUNDS = 20  # of Newton's method on the rates
SAME = 1e-7  # of the slowest micro-batch: ends that lie no further apart are one
GIVE_UP = 2.0**40  # micro-batches: a step towards a time that is long enough


@jit
def choose(sizes: Ints, bag: Bag, limit_s: float, largest: int) -> int:
    """Samples that all replicas train in the time, the best filling of each slot in `chosen`.

    0 if a replica trains none; fillings with more than `largest` samples in a micro-batch stay out.
    """
    total = 0
    for k in range(bag.number[0]):
        best = 0
        for f in range(bag.filling_count[k, 0]):
            b = sizes[bag.size[k, f]]
            if b > largest or bag.sum_s[k, f] > limit_s:
                continue
            more = int((limit_s - bag.sum_s[k, f]) / bag.tau_s[k, f] + 1e-9)
            samples = b * min(bag.most[k, f], 1 + more)
            if samples > best:
                best = samples
                bag.chosen[k] = f
        if best == 0:
            return 0
        total += best * bag.replicas[k]
    return total


@jit
def continuous_seconds(sizes: Ints, bag: Bag, batch: int, low_s: float, largest: int) -> float:
    """About when the batch is trained if micro-batches could be split; infinite if never.

    Newton's method on the samples trained by then, a convex function of the time where memory sets
    no limit: the first step leads beyond the root, the others back to it.
    """
    time_s = low_s
    for _ in range(ROUNDS):
        samples = 0.0
        rate = 0.0
        for k in range(bag.number[0]):
            best = 0.0
            best_rate = 0.0
            for f in range(bag.filling_count[k, 0]):
                b = sizes[bag.size[k, f]]
                if b > largest or bag.sum_s[k, f] > time_s:
                    continue
                trained = b * (1 + (time_s - bag.sum_s[k, f]) / bag.tau_s[k, f])
                most = b * bag.most[k, f]
                own_rate = b / bag.tau_s[k, f]
                if trained >= most:
                    trained = most
                    own_rate = 0.0
                if trained > best or (trained == best and own_rate > best_rate):
                    best = trained
                    best_rate = own_rate
            samples += bag.replicas[k] * best
            rate += bag.replicas[k] * best_rate
        if rate == 0.0:
            return time_s if samples >= batch else math.inf
        step_s = (batch - samples) / rate
        time_s = max(low_s, time_s + step_s)
        if abs(step_s) <= 1e-12 * time_s or (step_s < 0.0 and time_s == low_s):
            return time_s
    return time_s


@jit
def shares_exactly(sizes: Ints, bag: Bag, batch: int, limit_s: float) -> bool:
    """Whether the replicas can train B samples, no fewer and no more, each at least one batch.

    Greedy from the largest micro-batch: exact where sizes divide each other, as powers of two do.
    """
    left = batch
    for k in range(bag.number[0]):
        left -= bag.replicas[k] * sizes[bag.size[k, bag.chosen[k]]]
    if left < 0:
        return False
    for size in range(len(sizes) - 1, -1, -1):
        more = 0
        for k in range(bag.number[0]):
            f = bag.chosen[k]
            if bag.size[k, f] == size:
                fit = int((limit_s - bag.sum_s[k, f]) / bag.tau_s[k, f] + 1e-9)
                more += bag.replicas[k] * min(bag.most[k, f] - 1, fit)
        left -= min(more, left // sizes[size]) * sizes[size]
    return left == 0


@jit
def last_end(bag: Bag, limit_s: float) -> float:
    """When the last micro-batch ends that still ends within the time."""
    end_s = 0.0
    for k in range(bag.number[0]):
        f = bag.chosen[k]
        more = int((limit_s - bag.sum_s[k, f]) / bag.tau_s[k, f] + 1e-9)
        more = min(bag.most[k, f] - 1, more)
        end_s = max(end_s, bag.sum_s[k, f] + more * bag.tau_s[k, f])
    return end_s


@jit
def seconds_with(sizes: Ints, bag: Bag, batch: int, largest: int) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot."""
    low_s = 0.0
    widest_s = 0.0
    for k in range(bag.number[0]):
        first_s = math.inf
        for f in range(bag.filling_count[k, 0]):
            if sizes[bag.size[k, f]] <= largest:
                first_s = min(first_s, bag.sum_s[k, f])
                widest_s = max(widest_s, bag.tau_s[k, f])
        low_s = max(low_s, first_s)
    if low_s == math.inf:
        return math.inf
    high_s = continuous_seconds(sizes, bag, batch, low_s, largest)
    if high_s == math.inf:
        return math.inf
    below_s = high_s  # where the batch is not trained yet, or all there is
    step_s = widest_s
    if choose(sizes, bag, high_s, largest) < batch:
        high_s += step_s
        while choose(sizes, bag, high_s, largest) < batch:
            below_s = high_s
            step_s *= 2.0
            high_s += step_s
            if step_s > GIVE_UP * widest_s:
                return math.inf
    else:
        while below_s > low_s:
            below_s = max(low_s, high_s - step_s)
            if choose(sizes, bag, below_s, largest) < batch:
                break
            high_s = below_s
            step_s *= 2.0
    ends = 2 * bag.number[0] * step_s / widest_s  # of micro-batches that may lie between
    while ends >= 2.0:
        middle_s = 0.5 * (below_s + high_s)
        if choose(sizes, bag, middle_s, largest) < batch:
            below_s = middle_s
        else:
            high_s = middle_s
        ends *= 0.5
    while True:  # from one end of a micro-batch to the one before
        choose(sizes, bag, high_s, largest)
        end_s = last_end(bag, high_s)
        high_s = end_s - SAME * widest_s
        if high_s <= below_s or choose(sizes, bag, high_s, largest) < batch:
            break
    choose(sizes, bag, end_s, largest)
    return end_s if shares_exactly(sizes, bag, batch, end_s) else math.inf


@inlined
def pipeline_seconds(t: Tables, bag: Bag) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot.

    Every replica trains at least one micro-batch, so that large ones may be too many samples.
    """
    seconds = seconds_with(t.sizes, bag, t.batch, t.batch)
    largest = t.sizes[len(t.sizes) - 1]
    while seconds == math.inf and largest > 1:
        largest //= 2
        seconds = seconds_with(t.sizes, bag, t.batch, largest)
    return seconds


@inlined
def optimizer_seconds(t: Tables, bag: Bag, experts: StageExperts) -> float:
    """The longest optimizer step of any rank."""
    longest_s = 0.0
    for k in range(bag.number[0]):
        start = 0
        for s in range(bag.depth[k]):
            option = bag.options[k, s]
            kind = t.option_type[option]
            stop = start + bag.blocks[k, bag.chosen[k], s]
            dense = min(stop, t.dense) - min(start, t.dense)
            others = stop - start - dense
            held = dense * t.block_numel[option, 0] + others * t.block_numel[option, 1]
            if s == 0:
                held += t.ends_numel[option, 0]
            if s == bag.depth[k] - 1:
                held += t.ends_numel[option, 1]
            if t.zero:
                held = math.ceil(held / bag.replicas[k])
            if has_experts(t) and others:
                copies = 1
                if t.zero:
                    own = bag.replicas[k] * t.option_tp[option]
                    copies = max(1, own // experts.ways[k, s])
                held += math.ceil(others * experts.numel[k, s] / copies)
            longest_s = max(longest_s, t.optimizer_s[kind, 0] + t.optimizer_s[kind, 1] * held)
            start = stop
    return longest_s


@inlined
def placed_seconds(
    t: Tables, bag: Bag, work: PriceBench, seconds: float, most_s: float
) -> tuple[float, bool]:
    """What gradient sums and messages add to pipelines that are placed the better way.

    Args:
        t: what it prices with.
        bag: a plan whose fillings are chosen.
        work: for the function's own use, but for its experts.
        seconds: of the pipelines.
        most_s: what adds more counts as infinite.

    Returns:
        The seconds, and whether nodes then take one stage of many replicas.
    """
    is_by_stage = t.spreads_experts == 1
    sync_s = sync_seconds(t, bag, work, is_by_stage)
    added_s = math.inf
    if sync_s <= most_s:
        added_s = sync_s + packing_seconds(t, bag, work, seconds)
    if t.both_ways:
        least_s = sync_s / (work.free.shape[1] - 1)  # with one ring where all GPUs sent apart
        if least_s <= most_s and least_s < added_s:
            longer_s = by_stage_seconds(t, bag, seconds)
            if longer_s + least_s < min(most_s, added_s):
                longer_s += sync_seconds(t, bag, work, True)
                is_by_stage = longer_s < added_s
                added_s = min(added_s, longer_s)
    return added_s, is_by_stage


@jit
def iteration_seconds(t: Tables, bag: Bag, work: PriceBench, limit_s: float) -> float:
    """Pipelines, gradient sum and optimizer step; infinite if the batch cannot be shared.

    Args:
        t: what it prices with.
        bag: a plan whose slots are filled.
        work: for the function's own use.
        limit_s: what takes longer counts as infinite, and is known sooner.
    """
    if limit_s < math.inf and choose(t.sizes, bag, limit_s, t.batch) < t.batch:
        return math.inf
    seconds = pipeline_seconds(t, bag)
    if seconds > limit_s or seconds == math.inf:
        return math.inf
    look_at_experts(t, bag, work.experts)
    seconds += placed_seconds(t, bag, work, seconds, limit_s - seconds)[0]
    if seconds > limit_s:
        return math.inf
    seconds += optimizer_seconds(t, bag, work.experts)
    return seconds if seconds <= limit_s else math.inf


@jit
def stands_by_stage(t: Tables, bag: Bag, work: PriceBench) -> bool:
    """Whether a plan whose fillings are chosen has nodes take one stage of many replicas."""
    look_at_experts(t, bag, work.experts)
    return placed_seconds(t, bag, work, pipeline_seconds(t, bag), math.inf)[1]


@jit
def price_per_hour(t: Tables, bag: Bag) -> float:
    """Money for the nodes in use, idle GPUs of a node included."""
    total = 0.0
    for kind in range(len(t.node_gpus)):
        used = 0
        for k in range(bag.number[0]):
            for s in range(bag.depth[k]):
                if t.option_type[bag.options[k, s]] == kind:
                    used += bag.replicas[k] * t.option_tp[bag.options[k, s]]
        nodes = -(-used // t.node_gpus[kind])
        total += nodes * t.node_gpus[kind] * t.gpu_price[kind]
    return total
