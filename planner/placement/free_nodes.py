"""The rest of each node while a placement grows, and the node that fits a TP group best.

Nodes of one type with as many GPUs, as many of them free, wait in one heap, so that a choice looks
at a few heaps and not at every node.
Invariant: `best` is the node that a walk over all nodes would choose.
Source: free lists by size, as memory allocators keep them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from planner.cluster.composition import Composition, Node

Heap = list[tuple[float, str]]  # (-speed factor, name); a node that has lost GPUs since is skipped


@dataclass(slots=True)
class FreeNodes:
    """The nodes of a composition, and what a placement has taken of them."""

    free: dict[str, int]  # GPUs by node
    by_type: dict[str, list[Node]]  # nodes by GPU type
    # how many copies of each layer a node holds, where somebody asked to count
    layers: dict[str, Counter[int]] = field(default_factory=dict)
    # by type, then by (free GPUs, all GPUs)
    heaps: dict[str, dict[tuple[int, int], Heap]] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)

    @staticmethod
    def of(composition: Composition) -> FreeNodes:
        """Nothing is taken yet."""
        nodes = FreeNodes({node.name: node.gpus for node in composition.nodes}, {})
        for node in composition.nodes:
            nodes.by_type.setdefault(node.gpu_type, []).append(node)
            nodes._nodes[node.name] = node
            heaps = nodes.heaps.setdefault(node.gpu_type, {})
            heaps.setdefault((node.gpus, node.gpus), []).append((-node.speed_factor, node.name))
        for heaps in nodes.heaps.values():
            for heap in heaps.values():
                heapify(heap)
        return nodes

    def take(self, name: str, gpus: int, layers: Iterable[int] = ()) -> None:
        """GPUs of a node for a stage with these layers, if copies are to be counted."""
        node = self._nodes[name]
        self.free[name] -= gpus
        level = (self.free[name], node.gpus)
        heap = self.heaps[node.gpu_type].setdefault(level, [])
        heappush(heap, (-node.speed_factor, name))
        if layers:
            self.layers.setdefault(node.whole, Counter()).update(layers)

    def copies(self, node: str, layers: range) -> int:
        """How many copies of these layers the node holds already, on all of its hosts."""
        held = self.layers.get(self._nodes[node].whole)
        return max((held[layer] for layer in layers), default=0) if held else 0

    def with_room(self, gpu_type: str, gpus: int) -> list[Node]:
        """Nodes with so many free GPUs."""
        return [n for n in self.by_type.get(gpu_type, ()) if self.free[n.name] >= gpus]

    def best(
        self, gpu_type: str, gpus: int, wanted: int, near: Iterable[str | None] = ()
    ) -> str | None:
        """The node for a TP group; None if none has room.

        One of those that are near, then one that fits the wanted GPUs exactly, then one that has
        the fewest more, then the most; faster nodes first; ties go by name.

        Args:
            gpu_type: of the node.
            gpus: of the group; less is no room.
            wanted: GPUs that it and those to come would take; no more count than the largest node
                with room has in all.
            near: names of nodes that are preferred.
        """
        heaps = self.heaps.get(gpu_type, {})
        levels = [level for level in heaps if level[0] >= gpus and self._head(gpu_type, level)]
        if not levels:
            return None
        wanted = min(wanted, max(whole for _, whole in levels))
        beside = [
            (*_misfit(self.free[name], wanted), -node.speed_factor, name)
            for name, node in ((name, self._nodes[name]) for name in near if name is not None)
            if node.gpu_type == gpu_type and self.free[name] >= gpus
        ]
        if beside:
            return min(beside)[-1]
        return min(
            (*_misfit(level[0], wanted), *heaps[level][0])  # the heads are up to date now
            for level in levels
        )[-1]

    def _head(self, gpu_type: str, level: tuple[int, int]) -> bool:
        """Whether a node has so many free GPUs; its heap starts with the best then."""
        heap = self.heaps[gpu_type][level]
        while heap and self.free[heap[0][1]] != level[0]:
            heappop(heap)
        return bool(heap)


def _misfit(free: int, wanted: int) -> tuple[bool, int]:
    return free < wanted, abs(free - wanted)
