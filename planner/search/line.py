"""One line of search: annealing and column generation by turns, from one seed.

Each turn goes on from the best plans of the line so far; what becomes of them is its owner's.
Invariant: the same pricing, wishes, seed, method and plans from outside give the same turns, unless
seconds cut them short.
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

from collections.abc import Callable

from planner.estimator.build_tables import Pricing
from planner.estimator.objective import Wishes
from planner.request import Method
from planner.search.column_generation.columns import ColumnSearch
from planner.search.kernel_search import KernelSearch
from planner.search.turns import Progress, Turn, turns


class Line:
    """The engines of one line.

    Attributes:
        kernels: the walks, each but the first begun afresh; the last one goes on.
    """

    def __init__(
        self,
        pricing: Pricing,
        wishes: Wishes,
        seed: int,
        now_s: Callable[[], float],
        left_s: Callable[[], float],
        priced: int = 0,
    ) -> None:
        """Price the plans to start from.

        Args:
            pricing: supplies the tables.
            wishes: objective and limits.
            seed: of all random numbers.
            now_s: reads the clock.
            left_s: seconds that are left.
            priced: plans that were priced before.
        """
        self._pricing, self._wishes, self._seed = pricing, wishes, seed
        self._now_s, self._left_s = now_s, left_s
        self._took_s = 0.0
        self.kernels = [KernelSearch(pricing, wishes, seed, priced)]
        self.kernel.start()
        self._columns = ColumnSearch(pricing, wishes, seed)

    @property
    def kernel(self) -> KernelSearch:
        """The walk that goes on, and its best plans."""
        return self.kernels[-1]

    def run(
        self,
        method: Method,
        most: int,
        proposals: KernelSearch | None,
        after: Callable[[str, float], None],
        *,
        mixes_first: bool = False,
    ) -> None:
        """All turns.

        Args:
            method: which engines.
            most: plans that may be priced.
            proposals: plans that join when it is their turn.
            after: told the name of every turn that looked for plans, and when it began.
            mixes_first: whether columns come before walks in `auto`, as far as time is not short.
        """
        for turn in turns(method, most, self._progress, mixes_first=mixes_first):
            begun_s = self._now_s()
            if turn.engine == "walk":
                self._walk(turn, begun_s)
                after(turn.name, begun_s)
            elif turn.engine == "columns":
                self._generate(turn, begun_s)
                after("columns", begun_s)
            elif turn.engine == "proposals" and proposals is not None:
                self.kernel.take(proposals.elites, 0)
            elif turn.engine == "afresh":
                self._start_afresh()
            self._took_s = self._now_s() - begun_s

    def _progress(self) -> Progress:
        return Progress(self.kernel.evaluations, self.kernel.best, self._left_s(), self._took_s)

    def _start_afresh(self) -> None:
        """Another walk from nothing; the columns stay."""
        seed = self._seed + len(self.kernels)
        self.kernels.append(
            KernelSearch(self._pricing, self._wishes, seed, self.kernel.evaluations)
        )
        self.kernel.start()

    def _walk(self, turn: Turn, begun_s: float) -> None:
        """Annealing from the best plans."""
        until_s = begun_s + turn.share * self._left_s()
        self.kernel.walk(
            lambda: until_s - self._now_s(),
            turn.evaluations,
            templates=turn.templates or self._wishes.max_templates,
            hot=turn.hot,
            clock=self._now_s,
        )

    def _generate(self, turn: Turn, begun_s: float) -> None:
        """Templates built from prices, mixed to whole plans."""
        end_s = begun_s + turn.share * self._left_s()
        others = self.kernel.evaluations - self._columns.priced

        def over() -> bool:
            priced = others + self._columns.priced
            return self._now_s() >= end_s or priced >= turn.evaluations

        self._columns.run(self.kernel.elites, over, 1)
        self.kernel.evaluations = others + self._columns.priced
