"""When the pipelines of a plan have trained the batch, shared to the exact sample.

Each template takes the filling by which its replicas train most until then.
Invariant: no sample is trained later than need be, given what micro-batches of a filling take.
Source: Heddle, section 5.3; `planner.cost.batch_split`, of fillings that are chosen.
"""

from __future__ import annotations

import math

from planner.estimator import rules
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan

ROUNDS = 20  # of Newton's method on the rates
SAME = 1e-7  # of the slowest micro-batch: ends that lie no further apart are one
GIVE_UP = 2.0**40  # micro-batches: a step towards a time that is long enough


@inlined
def _within(plan: UnplacedPlan, k: int, f: int, limit_s: float) -> int:
    """The micro-batches that a replica of slot `k`, filled the `f`-th way, trains in the time."""
    return rules.micro_batches_within(limit_s, plan.tau_s[k, f], plan.sum_s[k, f], plan.most[k, f])


@jit
def choose(sizes: Ints, plan: UnplacedPlan, limit_s: float, largest: int) -> int:
    """Samples that all replicas train in the time, the best filling of each slot in `chosen`.

    0 if a replica trains none; fillings with more than `largest` samples in a micro-batch stay out.
    """
    total = 0
    for k in range(plan.number[0]):
        best = 0
        for f in range(plan.filling_count[k, 0]):
            b = sizes[plan.size[k, f]]
            if b > largest:
                continue
            samples = b * _within(plan, k, f, limit_s)
            if samples > best:
                best = samples
                plan.chosen[k] = f
        if best == 0:
            return 0
        total += best * plan.replicas[k]
    return total


@inlined
def continuous_seconds(
    sizes: Ints, plan: UnplacedPlan, batch: int, low_s: float, largest: int
) -> float:
    """About when the batch is trained if micro-batches could be split; infinite if never.

    Newton's method on the samples trained by then, a convex function of the time where memory sets
    no limit: the first step leads beyond the root, the others back to it.
    """
    time_s = low_s
    for _ in range(ROUNDS):
        samples = 0.0
        rate = 0.0
        for k in range(plan.number[0]):
            best = 0.0
            best_rate = 0.0
            for f in range(plan.filling_count[k, 0]):
                b = sizes[plan.size[k, f]]
                if b > largest or plan.sum_s[k, f] > time_s:
                    continue
                trained = b * (1 + (time_s - plan.sum_s[k, f]) / plan.tau_s[k, f])
                most = b * plan.most[k, f]
                own_rate = b / plan.tau_s[k, f]
                if trained >= most:
                    trained = most
                    own_rate = 0.0
                if trained > best or (trained == best and own_rate > best_rate):
                    best = trained
                    best_rate = own_rate
            samples += plan.replicas[k] * best
            rate += plan.replicas[k] * best_rate
        if rate == 0.0:
            return time_s if samples >= batch else math.inf
        step_s = (batch - samples) / rate
        time_s = max(low_s, time_s + step_s)
        if abs(step_s) <= 1e-12 * time_s or (step_s < 0.0 and time_s == low_s):
            return time_s
    return time_s


@inlined
def shares_exactly(sizes: Ints, plan: UnplacedPlan, batch: int, limit_s: float) -> bool:
    """Whether the replicas can train B samples, no fewer and no more, each at least one batch.

    Greedy from the largest micro-batch: exact where sizes divide each other, as powers of two do.
    """
    left = batch
    for k in range(plan.number[0]):
        left -= plan.replicas[k] * sizes[plan.size[k, plan.chosen[k]]]
    if left < 0:
        return False
    for size in range(len(sizes) - 1, -1, -1):
        more = 0
        for k in range(plan.number[0]):
            f = plan.chosen[k]
            if plan.size[k, f] == size:
                more += plan.replicas[k] * max(0, _within(plan, k, f, limit_s) - 1)
        left -= min(more, left // sizes[size]) * sizes[size]
    return left == 0


@inlined
def last_end(plan: UnplacedPlan, limit_s: float) -> float:
    """When the last micro-batch ends that still ends within the time."""
    end_s = 0.0
    for k in range(plan.number[0]):
        f = plan.chosen[k]
        number = max(1, _within(plan, k, f, limit_s))
        own_s = rules.pipeline_seconds(number, plan.tau_s[k, f], plan.sum_s[k, f])
        end_s = max(end_s, own_s)
    return end_s


@jit
def seconds_with(sizes: Ints, plan: UnplacedPlan, batch: int, largest: int) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot."""
    low_s = 0.0
    widest_s = 0.0
    for k in range(plan.number[0]):
        first_s = math.inf
        for f in range(plan.filling_count[k, 0]):
            if sizes[plan.size[k, f]] <= largest:
                first_s = min(first_s, plan.sum_s[k, f])
                widest_s = max(widest_s, plan.tau_s[k, f])
        low_s = max(low_s, first_s)
    if low_s == math.inf:
        return math.inf
    high_s = continuous_seconds(sizes, plan, batch, low_s, largest)
    if high_s == math.inf:
        return math.inf
    below_s = high_s  # where the batch is not trained yet, or all there is
    step_s = widest_s
    if choose(sizes, plan, high_s, largest) < batch:
        high_s += step_s
        while choose(sizes, plan, high_s, largest) < batch:
            below_s = high_s
            step_s *= 2.0
            high_s += step_s
            if step_s > GIVE_UP * widest_s:
                return math.inf
    else:
        while below_s > low_s:
            below_s = max(low_s, high_s - step_s)
            if choose(sizes, plan, below_s, largest) < batch:
                break
            high_s = below_s
            step_s *= 2.0
    ends = 2 * plan.number[0] * step_s / widest_s  # of micro-batches that may lie between
    while ends >= 2.0:
        middle_s = 0.5 * (below_s + high_s)
        if choose(sizes, plan, middle_s, largest) < batch:
            below_s = middle_s
        else:
            high_s = middle_s
        ends *= 0.5
    while True:  # from one end of a micro-batch to the one before
        choose(sizes, plan, high_s, largest)
        end_s = last_end(plan, high_s)
        high_s = end_s - SAME * widest_s
        if high_s <= below_s or choose(sizes, plan, high_s, largest) < batch:
            break
    choose(sizes, plan, end_s, largest)
    return end_s if shares_exactly(sizes, plan, batch, end_s) else math.inf


@inlined
def pipeline_seconds(t: Tables, plan: UnplacedPlan) -> float:
    """The least time in which the replicas train the batch; infinite if they cannot.

    Every replica trains at least one micro-batch, so that large ones may be too many samples.
    """
    seconds = seconds_with(t.sizes, plan, t.batch, t.batch)
    largest = t.sizes[len(t.sizes) - 1]
    while seconds == math.inf and largest > 1:
        largest //= 2
        seconds = seconds_with(t.sizes, plan, t.batch, largest)
    return seconds
