"""The engines at work: what their turns find is placed, priced and joins the findings.

Where seconds end the search, other lines look beside the first one, each on a core of its own and
from another seed.  The first one takes their plans after each of its turns, and places the best.
Loading numba takes most of a second, so this is imported where the kernel is needed and not before.
Invariant: the same course, pricing and share find the same plans, unless seconds cut them short.
Source: design, section 2 ("An anytime planner in stages"); a portfolio of randomised searches.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from planner.estimator.build_tables import Pricing
from planner.request import Method, PlanRequest
from planner.search.cores import usable_cores
from planner.search.course import SETTLED, Course
from planner.search.exchange import Exchange
from planner.search.kernel_search import KernelSearch, wishes_of
from planner.search.line import Line

SETTLED_TILED = 3  # plans that are placed after each walk, where experts are spread
MOST_LINES = 4
SEEDS = 1_000_003  # between the seeds of two lines: further apart than walks begun afresh


def lines_of(request: PlanRequest) -> int:
    """How many lines of search a request gets: one where its plan is to be the same every time."""
    if request.budget_s is None or request.budget_evaluations is not None:
        return 1
    return request.threads or min(MOST_LINES, usable_cores())


class Engines:
    """Annealing and column generation, in one line or several."""

    def __init__(self, course: Course, pricing: Pricing, share: float) -> None:
        """Prepare.

        Args:
            course: of the search, which takes the plans.
            pricing: supplies the tables.
            share: of the seconds and plans that are left.
        """
        self._course, self._request = course, course.request
        self._pricing, self._share = pricing, share
        self._wishes = wishes_of(course.request)
        # where experts sit decides what their exchange takes, which a placement knows best
        self._tiled = bool(pricing.tables.spreads_experts)
        self._settled = SETTLED_TILED if self._tiled else 1
        self._proposals: KernelSearch | None = None
        self._lines = lines_of(course.request)
        self._exchange = Exchange()
        self._end_s = 0.0

    def run(self, propose: Callable[[KernelSearch], None] | None) -> None:
        """All turns of all lines.

        Args:
            propose: offers plans of rollouts, which join after the first walks.
        """
        course, request = self._course, self._request
        self._end_s = course.now_s() + self._share * course.left_to_search_s()
        line = self._first_line(propose)
        before = course.findings.evaluations - line.kernel.evaluations
        most = int(self._share * max(0, request.most_evaluations - before))

        def gather() -> None:
            priced = line.kernel.evaluations + self._exchange.take(line.kernel)
            course.findings.evaluations = before + priced

        def after(name: str, begun_s: float) -> None:
            gather()
            course.settle(line.kernel.recipes(), 1 if name == "columns" else self._settled)
            course.record(name, begun_s)

        with ExitStack() as stack:
            beside = self._begin_others(stack, most)
            line.run(request.method, most, self._proposals, after, mixes_first=self._tiled)
            begun_s = course.now_s()
            for other in beside:
                other.result()
        gather()
        best = min(line.kernels, key=lambda one: one.best)
        course.settle(best.recipes(), max(SETTLED, self._settled))
        if beside:
            course.record("other lines", begun_s)

    def _left_s(self) -> float:
        return min(self._course.left_to_search_s(), self._end_s - self._course.now_s())

    def _new_line(self, seed: int, priced: int = 0) -> Line:
        return Line(self._pricing, self._wishes, seed, self._course.now_s, self._left_s, priced)

    def _first_line(self, propose: Callable[[KernelSearch], None] | None) -> Line:
        """With so many pipelines as are asked for, or fewer if no such plan fits."""
        course, seed, priced = self._course, self._request.seed, 0
        if propose is not None:
            self._proposals = KernelSearch(self._pricing, self._wishes, seed)
            propose(self._proposals)
            priced = self._proposals.evaluations
        begun_s = course.now_s()
        line = self._new_line(seed, priced)
        if not line.kernel.found and self._pricing.tables.min_replicas > 1:
            tables = self._pricing.tables._replace(min_replicas=1)
            self._pricing = replace(self._pricing, tables=tables)
            line = self._new_line(seed, priced)
        course.findings.evaluations += line.kernel.evaluations - priced
        course.settle(line.kernel.recipes(), 1)
        course.record("uniform", begun_s)
        return line

    def _begin_others(self, stack: ExitStack, most: int) -> list[Future[None]]:
        """Lines beside the first one; with `auto` every other one begins as the first does not."""
        count = self._lines - 1
        if count == 0:
            return []
        pool = stack.enter_context(ThreadPoolExecutor(count, "line of search"))
        return [pool.submit(self._run_beside, number, most) for number in range(1, count + 1)]

    def _run_beside(self, number: int, most: int) -> None:
        method: Method = self._request.method
        if method == "auto" and number % 2 and not self._tiled:
            method = "columns"
        line = self._new_line(self._request.seed + SEEDS * number)

        def after(*_: object) -> None:
            self._exchange.leave(number, line.kernel)

        line.run(method, most, self._proposals, after, mixes_first=self._tiled and number % 2 == 0)
