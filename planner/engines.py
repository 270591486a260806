"""The two engines at work: what is found by walks and columns, turn by turn, joins the findings.

Loading numba takes most of a second, so this is imported where the kernel is needed and not before.
Invariant: the same course, pricing and share find the same plans, unless seconds cut them short.
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.columns import ColumnSearch
from planner.course import SETTLED, Course
from planner.kernel_search import KernelSearch, wishes_of
from planner.pricing_tables import Pricing
from planner.turns import Progress, Turn, turns

SETTLED_TILED = 3  # plans that are placed after each walk, where experts are spread


class Engines:
    """Annealing and column generation, which share their best plans."""

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
        # where experts sit decides what their exchange takes, which the kernel knows only roughly
        self._settled = SETTLED_TILED if pricing.tables.spreads_experts else 1
        self._kernels: list[KernelSearch] = []
        self._proposals: KernelSearch | None = None
        self._end_s = self._took_s = 0.0
        self._priced_before = 0

    def run(self, propose: Callable[[KernelSearch], None] | None) -> None:
        """All turns.

        Args:
            propose: offers plans of rollouts, which join after the first walks.
        """
        course, request = self._course, self._request
        self._end_s = course.now_s() + self._share * course.left_to_search_s()
        self._start(propose)
        kernel = self._kernels[-1]
        columns = ColumnSearch(self._pricing, self._wishes, request.seed)
        self._priced_before = course.findings.evaluations - kernel.evaluations
        most = int(self._share * max(0, request.most_evaluations - self._priced_before))
        for turn in turns(request.method, most, self._progress):
            begun_s = course.now_s()
            if turn.engine == "walk":
                self._walk(turn)
            elif turn.engine == "columns":
                self._generate(columns, turn)
            elif turn.engine == "proposals" and self._proposals is not None:
                self._kernels[-1].take(self._proposals.elites, 0)
            elif turn.engine == "afresh":
                self._start_afresh()
            self._took_s = course.now_s() - begun_s
        best = min(self._kernels, key=lambda one: one.best)
        course.settle(best.recipes(), max(SETTLED, self._settled))

    def _progress(self) -> Progress:
        kernel = self._kernels[-1]
        return Progress(kernel.evaluations, kernel.best, self._left_s(), self._took_s)

    def _left_s(self) -> float:
        return min(self._course.left_to_search_s(), self._end_s - self._course.now_s())

    # ------------------------------------------------------------------ turns

    def _start(self, propose: Callable[[KernelSearch], None] | None) -> None:
        """With so many pipelines as are asked for, or fewer if no such plan fits."""
        course, seed, priced = self._course, self._request.seed, 0
        if propose is not None:
            self._proposals = KernelSearch(self._pricing, self._wishes, seed)
            propose(self._proposals)
            priced = self._proposals.evaluations
        begun_s = course.now_s()
        kernel = KernelSearch(self._pricing, self._wishes, seed, priced)
        kernel.start()
        if not kernel.found and self._pricing.tables.min_replicas > 1:
            tables = self._pricing.tables._replace(min_replicas=1)
            self._pricing = replace(self._pricing, tables=tables)
            kernel = KernelSearch(self._pricing, self._wishes, seed, priced)
            kernel.start()
        self._kernels.append(kernel)
        course.findings.evaluations += kernel.evaluations - priced
        course.settle(kernel.recipes(), 1)
        course.record("uniform", begun_s)

    def _start_afresh(self) -> None:
        """Another walk from nothing; the columns stay."""
        seed = self._request.seed + len(self._kernels)
        priced = self._kernels[-1].evaluations
        self._kernels.append(KernelSearch(self._pricing, self._wishes, seed, priced))
        self._kernels[-1].start()

    def _walk(self, turn: Turn) -> None:
        """Annealing from the best plans."""
        kernel, now_s = self._kernels[-1], self._course.now_s
        begun_s = now_s()
        until_s = begun_s + turn.share * self._left_s()
        kernel.walk(
            lambda: until_s - now_s(),
            turn.evaluations,
            templates=turn.templates or self._request.max_templates,
            hot=turn.hot,
            clock=now_s,
        )
        self._settle(turn.name, begun_s, self._settled)

    def _generate(self, columns: ColumnSearch, turn: Turn) -> None:
        """Templates built from prices, mixed to whole plans."""
        kernel, now_s = self._kernels[-1], self._course.now_s
        begun_s = now_s()
        end_s = begun_s + turn.share * self._left_s()
        others = kernel.evaluations - columns.priced

        def over() -> bool:
            return now_s() >= end_s or others + columns.priced >= turn.evaluations

        columns.run(kernel.elites, over, 1)
        kernel.evaluations = others + columns.priced
        self._settle("columns", begun_s, 1)

    def _settle(self, name: str, begun_s: float, most: int) -> None:
        """Place and price the best plans of a turn, and write it down."""
        kernel, course = self._kernels[-1], self._course
        course.findings.evaluations = self._priced_before + kernel.evaluations
        course.settle(kernel.recipes(), most)
        course.record(name, begun_s)
