"""GPUs of each job and free ones, while they are dealt out node by node.

A job gets GPUs first on nodes where it is, then on nodes where nobody is, then beside others; the
node with the most room comes first, and ties go by name.  On fewer nodes than its state is to be on
(`Demand.min_holders`) it gets one GPU of each further node before.  Whole runs of GPUs of a node
are dealt at once where no other node would come between.
Invariants: no GPU is dealt twice; the next node is found in time that does not grow with the number
of nodes.  Nodes wait in heaps whose entries are checked when they are read: what happens to a node
only makes it worse, and where it gets better (a pod is taken) it is entered anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from heddle_operator.rules.arbitration.demand import Allowance, Demand


@dataclass(slots=True)
class _Shelf:
    """Nodes of one GPU type that jobs with the same nodes could go to, the most room first."""

    empty: list[tuple[int, str]] = field(default_factory=list)  # nobody has GPUs there
    shared: list[tuple[int, str]] = field(default_factory=list)


class Table:
    """GPUs by job and node, and those that are free."""

    def __init__(self, ordered: Iterable[Demand]) -> None:
        self.ordered = tuple(ordered)
        self.free: dict[str, int] = {}
        self.total: dict[str, int] = {}  # GPUs of a job on nodes that it can use
        self.usable: dict[str, dict[str, int]] = {}
        self._type: dict[str, str] = {}
        self._types_of: dict[str, tuple[str, ...]] = {}
        self._min_holders = {demand.job: demand.min_holders for demand in self.ordered}
        self._pods = {demand.job: list(demand.pods) for demand in self.ordered}
        self._on: dict[str, Counter[str]] = {}
        self._jobs_on: Counter[str] = Counter()
        self._owed: set[tuple[str, str]] = set()  # (job, node) where it gives a pod back
        self._log: list[tuple[str, str, int, int]] = []  # job, node, GPUs dealt, index of a pod
        self._of_job: dict[tuple[str, str], _Shelf] = {}
        self._shelves_of: dict[str, list[tuple[_Shelf, int]]] = {}
        self._here: dict[tuple[str, str], list[tuple[bool, int, str]]] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        """Each set of nodes once, however many jobs could use the same."""
        free, types = self.free, self._type
        alike: dict[tuple[tuple[str, int], ...], list[Demand]] = {}
        for demand in self.ordered:
            alike.setdefault(demand.nodes, []).append(demand)
        for nodes, demands in alike.items():
            demand, usable = demands[0], dict(nodes)
            self.usable |= {each.job: usable for each in demands}
            for node, gpus in nodes:
                if free.get(node, -1) < gpus:
                    free[node] = gpus
                    types[node] = demand.types.get(node, "")
        for demand in self.ordered:
            on = self._on[demand.job] = Counter()
            for node, gpus in demand.pods:
                on[node] += gpus
                self.free[node] = max(0, self.free.get(node, 0) - gpus)
                types.setdefault(node, demand.types.get(node, ""))
            self._jobs_on.update(on.keys())
            usable = self.usable[demand.job]
            self.total[demand.job] = sum(gpus for node, gpus in on.items() if node in usable)
        for nodes, demands in alike.items():
            self._shelve(nodes, [demand.job for demand in demands])
        for demand in self.ordered:
            for node in self._on[demand.job]:
                self._enter_here(demand.job, node)

    def _shelve(self, nodes: Iterable[tuple[str, int]], jobs: Iterable[str]) -> None:
        shelves: defaultdict[str, _Shelf] = defaultdict(_Shelf)
        for node, gpus in nodes:
            shelf = shelves[self._type[node]]
            self._shelves_of.setdefault(node, []).append((shelf, gpus))
            room = min(gpus, self.free[node])
            heappush(shelf.shared if self._jobs_on[node] else shelf.empty, (-room, node))
        types = tuple(sorted(shelves))
        for job in jobs:
            self._types_of[job] = types
            self._of_job |= {(job, gpu_type): shelf for gpu_type, shelf in shelves.items()}

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types of the nodes that any job could use, sorted."""
        return tuple(sorted({gpu_type for _, gpu_type in self._of_job}))

    def types_of(self, job: str) -> tuple[str, ...]:
        """The types that a job could use, sorted."""
        return self._types_of[job]

    def supply(self) -> dict[str, int]:
        """Free GPUs by type."""
        found: dict[str, int] = {}
        for node, gpus in self.free.items():
            found[self._type[node]] = found.get(self._type[node], 0) + gpus
        return found

    def held(self, job: str) -> dict[str, int]:
        """GPUs that the job has on nodes it can use, by type."""
        found: dict[str, int] = {}
        for node, gpus in self._on[job].items():
            if node in self.usable[job]:
                found[self._type[node]] = found.get(self._type[node], 0) + gpus
        return found

    def rooms(self, job: str) -> dict[str, int]:
        """GPUs that it could be dealt were nothing dealt to others, by type."""
        found: dict[str, int] = {}
        for node in self.usable[job]:
            found[self._type[node]] = found.get(self._type[node], 0) + self.room(job, node)
        return found

    def room(self, job: str, node: str) -> int:
        """GPUs of a node that the job could be dealt."""
        if (job, node) in self._owed:
            return 0  # a part of a pod cannot be kept
        own = self.usable[job].get(node, 0) - self._on[job][node]
        return max(0, min(self.free[node], own))

    def answer(self, demand: Demand) -> Allowance:
        """By node; a job that cannot reach its floor sees what is free, and reserves nothing."""
        found = {node: gpus for node, gpus in self._on[demand.job].items() if gpus}
        if self.total[demand.job] < demand.least:
            for node in self.usable[demand.job]:
                if room := self.room(demand.job, node):
                    found[node] = found.get(node, 0) + room
        return found

    def give(self, job: str, gpu_type: str, at_most: int) -> int:
        """Deal free GPUs of a type, all on one node; how many, 0 if there is none.

        Fewer than there is room for where another node of the job comes next.
        """
        if self.lacks_nodes(job) and (given := self.give_elsewhere(job, gpu_type, 1)):
            return given
        here = self._here.get((job, gpu_type), [])
        node = self._best_here(job, here)
        if node is None:
            return self.give_elsewhere(job, gpu_type, at_most)
        heappop(here)
        alone = self._best_here(job, here) is None
        return self._give_on(job, node, at_most if alone else 1)

    def give_elsewhere(self, job: str, gpu_type: str, at_most: int) -> int:
        """As `give`, on a node where the job is not."""
        node = self._best_elsewhere(job, gpu_type)
        return self._give_on(job, node, at_most) if node is not None else 0

    def lacks_nodes(self, job: str) -> bool:
        """Whether it has GPUs on fewer nodes that it can use than its state is to be on."""
        least, usable = self._min_holders[job], self.usable[job]
        if least < 2:
            return False
        on = (node for node, gpus in self._on[job].items() if gpus and node in usable)
        return sum(1 for _ in islice(on, least)) < least

    def take_for(self, demand: Demand) -> bool:
        """Free one pod of the job of lowest priority; among equals, of the job that loses least."""
        need = demand.least - self.total[demand.job]
        for lender in sorted(
            (d for d in self.ordered if d.priority < demand.priority),
            key=lambda d: (d.priority, -self.total[d.job] / d.weight),
        ):
            rows = self._pods[lender.job]
            last = {node: index for index, (node, _) in enumerate(rows)}
            spare = self.total[lender.job] - lender.least
            found = [
                index
                for node, index in last.items()
                if node in self.usable[demand.job] and rows[index][1] <= spare
            ]
            if found:
                # The smallest one that suffices, else the largest.
                index = min(found, key=lambda i: (rows[i][1] < need, abs(rows[i][1] - need), -i))
                node, gpus = rows.pop(index)
                self._log.append((lender.job, node, -gpus, index))
                self._deal(lender.job, node, -gpus)
                self._owed.add((lender.job, node))
                self._enter_anew(node)
                return True
        return False

    def mark(self) -> int:
        """Where things stand, for `undo`."""
        return len(self._log)

    def undo(self, mark: int, keep_taken: bool = False) -> None:
        """Go back to a mark; pods that were taken from jobs stay so if they are to be kept."""
        kept = []
        while len(self._log) > mark:
            job, node, gpus, index = entry = self._log.pop()
            if index >= 0 and keep_taken:
                kept.append(entry)
                continue
            self._deal(job, node, -gpus)
            if index >= 0:
                self._pods[job].insert(index, (node, -gpus))
                self._owed.discard((job, node))
            self._enter_anew(node)
        self._log += reversed(kept)

    def _give_on(self, job: str, node: str, at_most: int) -> int:
        gpus = min(self.room(job, node), at_most)
        self._log.append((job, node, gpus, -1))
        self._deal(job, node, gpus)
        self._enter_here(job, node)
        return gpus

    def _deal(self, job: str, node: str, gpus: int) -> None:
        on = self._on[job]
        before, on[node] = on[node], on[node] + gpus
        self._jobs_on[node] += (on[node] > 0) - (before > 0)
        self.free[node] -= gpus
        if node in self.usable[job]:
            self.total[job] += gpus

    def _key_here(self, job: str, node: str) -> tuple[bool, int, str]:
        return (self._jobs_on[node] > 1, -self.room(job, node), node)

    def _enter_here(self, job: str, node: str) -> None:
        if self._on[job][node] and self.room(job, node):
            heap = self._here.setdefault((job, self._type[node]), [])
            heappush(heap, self._key_here(job, node))

    def _enter_anew(self, node: str) -> None:
        for shelf, gpus in self._shelves_of.get(node, ()):
            entry = (-min(gpus, self.free[node]), node)
            heappush(shelf.empty, entry)
            heappush(shelf.shared, entry)
        for job, on in self._on.items():
            if on[node] and node in self.usable[job]:
                self._enter_here(job, node)

    def _best_here(self, job: str, heap: list[tuple[bool, int, str]]) -> str | None:
        """The node on which the job is that comes next."""
        while heap:
            node = heap[0][2]
            if not self._on[job][node] or not self.room(job, node):
                heappop(heap)
            elif heap[0] != (key := self._key_here(job, node)):
                heappop(heap)
                heappush(heap, key)
            else:
                return node
        return None

    def _best_elsewhere(self, job: str, gpu_type: str) -> str | None:
        """The node on which the job is not that comes next."""
        shelf = self._of_job.get((job, gpu_type))
        if shelf is None:
            return None
        return self._best_of(job, shelf, shelf.empty) or self._best_of(job, shelf, shelf.shared)

    def _best_of(self, job: str, shelf: _Shelf, heap: list[tuple[int, str]]) -> str | None:
        usable, skipped = self.usable[job], []
        found: str | None = None
        while heap and found is None:
            room, node = heap[0]
            now = min(self.free[node], usable[node])
            is_shared = self._jobs_on[node] > 0
            if now <= 0 or is_shared != (heap is shelf.shared):
                heappop(heap)
                if now > 0 and is_shared:
                    heappush(shelf.shared, (-now, node))
            elif now != -room:
                heappop(heap)
                heappush(heap, (-now, node))
            elif self._on[job][node] or not self.room(job, node):
                skipped.append(heappop(heap))
            else:
                found = node
        for entry in skipped:
            heappush(heap, entry)
        return found
