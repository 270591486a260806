"""MCTS: upper-confidence tree search over the decisions of Heddle's own templates.

A node of the tree is a list of decisions: a depth or STOP, then a GPU type with a TP degree for
each stage, template after template.  A leaf is played out with random decisions that can still be
packed; after each template the fill and the price are those of Heddle's estimator, so that a play
is worth its best plan, over the best plan of the whole search.
It stands in for HetAuto, whose search is known to be such a tree and whose text is not public.
Source: Kocsis and Szepesvari, Bandit based Monte-Carlo planning, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.baselines.estimated_plans import answer_by_estimates
from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from planner.estimator.build_tables import Pricing
from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits, objective, refill
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Tables
from planner.estimator.top_k import TopK, new_top_k, remember
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, new_plan
from planner.estimator.workspace import Workspace, new_workspace
from planner.request import PlanRequest

EXPLORATION = math.sqrt(2)  # weight of what was seldom tried, for rewards of 0 to 1
STOP = 0  # in place of a depth


def plan(question: Question, budget: Budget) -> Answer:
    """The best plans of the tree search; see `answer_by_estimates`."""

    def load(pricing: Pricing) -> None:
        _Search(question, pricing, Meter(Budget(evaluations=1))).play()

    def search(pricing: Pricing, meter: Meter) -> TopK:
        tree = _Search(question, pricing, meter)
        while meter.goes_on():
            tree.play()
        return tree.top_k

    return answer_by_estimates(question, budget, load, search)


@jit
def price_last(
    t: Tables, limits: SearchLimits, plan: UnplacedPlan, work: Workspace, top_k: TopK
) -> float:
    """Fill the last template, as often as it fits, and price the plan; infinite if it fails."""
    k = plan.number[0] - 1
    plan.replicas[k] = 1
    replicas = most_replicas(t, plan, k)
    if replicas < 1:
        return math.inf
    plan.replicas[k] = replicas
    if not refill(t, plan, k, work):
        return math.inf
    value = objective(t, limits, plan, work, math.inf)
    if value < math.inf:
        remember(top_k, plan, value)
    return value


@dataclass(slots=True)
class _Node:
    """Visits, sum of rewards in samples per second, and what was tried from here."""

    visits: int = 0
    total: float = 0.0
    children: dict[int, _Node] = field(default_factory=dict)


class _Search:
    def __init__(self, question: Question, pricing: Pricing, meter: Meter) -> None:
        request = PlanRequest(workload=question.workload, composition=question.composition)
        self.deepest = min(request.deepest, MAX_DEPTH)
        self.limits = SearchLimits(self.deepest, MAX_TEMPLATES, 0, math.inf, math.inf)
        self.tables, self.meter = pricing.tables, meter
        self.work, self.now, self.top_k = new_workspace(pricing.tables), new_plan(), new_top_k()
        self.random, self.root = Random(question.seed), _Node()
        self.batch, self.best = question.workload.global_batch, 0.0
        self.degrees = [int(tp) for tp in self.tables.option_tp]
        self.classes = [int(one) for one in self.tables.option_type]
        self.room = [int(gpus) for gpus in self.tables.room]

    def play(self) -> None:
        """One descent, one play to its end, and its reward on the way back."""
        path, node, reward, grows = [self.root], self.root, 0.0, True
        self.now.number[0] = 0
        for _ in range(MAX_TEMPLATES):
            depth, node = self._choose(node, self._depths(), grows)
            grows = self._pass(path, node, grows)
            if depth == STOP:
                break
            k = int(self.now.number[0])
            self.now.number[0], self.now.depth[k] = k + 1, depth
            free = self._free(k)
            for s in range(depth):
                option, node = self._choose(node, self._options(free), grows)
                grows = self._pass(path, node, grows)
                self.now.options[k, s] = option
                free[self.classes[option]] -= self.degrees[option]
            value = price_last(self.tables, self.limits, self.now, self.work, self.top_k)
            self.meter.priced += 1
            if value == math.inf:
                break
            reward = max(reward, self.batch / value)
            if not self.meter.goes_on():
                break
        self.best = max(self.best, reward)
        for visited in path:
            visited.visits += 1
            visited.total += reward

    def _pass(self, path: list[_Node], node: _Node | None, grows: bool) -> bool:
        """Go on in the tree, or leave it after its first new node; whether the tree goes on."""
        if not grows or node is None:
            return False
        path.append(node)
        return node.visits > 0

    def _choose(
        self, node: _Node | None, allowed: Sequence[int], grows: bool
    ) -> tuple[int, _Node | None]:
        """A decision, and its node while the play is in the tree."""
        if not grows or node is None:
            return self.random.choice(allowed), None
        untried = [one for one in allowed if one not in node.children]
        if untried:
            chosen = self.random.choice(untried)
            node.children[chosen] = _Node()
            return chosen, node.children[chosen]
        scale, log = self.best or 1.0, math.log(max(1, node.visits))

        def confidence(one: int) -> float:
            child = node.children[one]
            seen = max(1, child.visits)
            return child.total / seen / scale + EXPLORATION * math.sqrt(log / seen)

        chosen = max(allowed, key=confidence)
        return chosen, node.children[chosen]

    def _depths(self) -> list[int]:
        """STOP after the first template, and every depth that the GPUs left can hold."""
        k = int(self.now.number[0])
        most = min(self.deepest, sum(self._free(k).values()))
        return [*([STOP] if k else []), *range(1, most + 1)] or [1]

    def _free(self, k: int) -> dict[int, int]:
        """GPUs by node class that the first k templates leave."""
        free: dict[int, int] = {}
        for option, kind in enumerate(self.classes):
            free[kind] = max(free.get(kind, 0), self.room[option])
        for j in range(k):
            for s in range(int(self.now.depth[j])):
                option = int(self.now.options[j, s])
                free[self.classes[option]] -= self.degrees[option] * int(self.now.replicas[j])
        return free

    def _options(self, free: dict[int, int]) -> list[int]:
        """GPU types with a TP degree that are left; all of them where none is."""
        left = [o for o, tp in enumerate(self.degrees) if free[self.classes[o]] >= tp]
        return left or list(range(len(self.degrees)))
