"""Since when each node has been usable, and since when it has had each of its notices.

Invariant: a node that was gone and comes back is a new one; one that flaps is waited for.
"""

from __future__ import annotations

from collections.abc import Collection

from heddle_operator.inventory.nodes import NodeFacts, NodeView, view_node
from heddle_operator.inventory.requests import GpuAllocation


class NodeHistory:
    """A job's memory of nodes, by name.

    Args:
        clock_offset_s: wall clock less the clock of `now`.
    """

    def __init__(self, clock_offset_s: float) -> None:
        self._offset_s = clock_offset_s
        self._joined_s: dict[str, float] = {}
        self._noticed_s: dict[str, dict[str, float]] = {}  # by the words of each notice
        self._has_looked = False

    def keep_only(self, names: Collection[str]) -> None:
        """All of these were looked at; forget the others."""
        for name in self._joined_s.keys() - set(names):
            del self._joined_s[name]
        for name in self._noticed_s.keys() - set(names):
            del self._noticed_s[name]
        self._has_looked = self._has_looked or bool(names)

    def view(
        self,
        facts: NodeFacts,
        held: tuple[int, int],
        now: float,
        lent: int = 0,
        claims: tuple[GpuAllocation, ...] = (),
        waits_until_s: float | None = None,
    ) -> NodeView | None:
        """A node as the job sees it; see `view_node`.

        Args:
            facts: of the node.
            held: GPUs that pods of the job hold there, and that others hold or claim.
            now: by the loop's clock.
            lent: GPUs of those that others hold which other jobs hold.
            claims: of pods of others that wait.
            waits_until_s: before then it is not joined, as it flaps; None: it does not.
        """
        name = facts.name
        # Nodes that were there before this operator have waited long enough already.
        since_s = now if self._has_looked else facts.ready_since_wall_s - self._offset_s
        since_s = self._joined_s.pop(name, since_s)
        known_s = self._noticed_s.pop(name, {})
        noticed_s = {notice.why: known_s.get(notice.why, now) for notice in facts.notices}
        joined_s = since_s if waits_until_s is None else max(since_s, waits_until_s)
        view = view_node(facts, held, joined_s, now, self._offset_s, lent, noticed_s, claims)
        seen = view.seen if view is not None else None
        if seen is not None and seen.for_jobs:
            self._joined_s[name] = since_s
        if seen is not None and seen.leaving_at_s is not None:
            self._noticed_s[name] = noticed_s
        return view
