"""Worth of one more node of each GPU type: a hint for whoever orders nodes.

Invariant: the plan with the node is searched from the plan without it, so more nodes never count
as a loss, and with the same budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from planner.cluster.composition import Composition, Node
from planner.profiles.profile import Profile
from planner.request import MarginalGain, PlanAnswer, PlanRequest
from planner.search.budget import never
from planner.search.driver import search


def marginal_gains(
    request: PlanRequest,
    profile: Profile,
    answer: PlanAnswer,
    interrupted: Callable[[], bool] = never,
) -> tuple[MarginalGain, ...]:
    """Search once more per profiled GPU type, with one more node of it; the largest gain first.

    None once it is interrupted: some gains without the others would look like the best.
    """
    gains = []
    for gpu_type in request.composition.gpu_types:
        if gpu_type not in profile.types:
            continue
        node = one_more(request.composition, gpu_type)
        larger = Composition((*request.composition.nodes, node))
        asked = replace(request, composition=larger, current=answer.plan)
        found = search(asked, profile, interrupted=interrupted).throughput_samples_s
        if interrupted():
            return ()
        # a plan that has more holders then may be slower
        gain = max(0.0, found - answer.throughput_samples_s)
        gains.append(MarginalGain(gpu_type, node.gpus, gain))
    return tuple(sorted(gains, key=lambda gain: (-gain.gain_samples_s, gain.gpu_type)))


def one_more(composition: Composition, gpu_type: str) -> Node:
    """A new node like most of that type: the commonest size (of equals the larger), full speed."""
    alike = [node for node in composition.nodes if node.gpu_type == gpu_type]
    sizes = Counter(node.gpus for node in alike)
    gpus = max(sizes, key=lambda size: (sizes[size], size))
    model = next(node for node in alike if node.gpus == gpus)
    taken = {node.name for node in composition.nodes}
    number = next(i for i in range(len(taken) + 1) if f"one-more-{gpu_type}-{i}" not in taken)
    return replace(model, name=f"one-more-{gpu_type}-{number}", speed_factor=1.0, hosts=())
