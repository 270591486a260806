"""Since when each node has been usable, and since when it has had each of its notices.

Invariant: a node that was gone and comes back is a new one.
Source: design, section 5: a node that joins is waited for, and a notice has a deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heddle_operator.inventory.disruptions import notices_of
from heddle_operator.inventory.nodes import NodeRequirements, NodeView, ready_since, view_node


class NodeHistory:
    """What a job remembers of nodes, by name.

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
        node: Mapping[str, Any],
        held: tuple[int, int],
        required: NodeRequirements,
        now: float,
        lent: int,
    ) -> NodeView | None:
        """A node as the job sees it; see `view_node`."""
        name = node["metadata"]["name"]
        # Nodes that were there before this operator have waited long enough already.
        since_s = now if self._has_looked else ready_since(node) - self._offset_s
        since_s = self._joined_s.pop(name, since_s)
        known_s = self._noticed_s.pop(name, {})
        noticed_s = {
            notice.why: known_s.get(notice.why, now)
            for notice in notices_of(node, required.leave_on_cordon)
        }
        view = view_node(node, held, required, since_s, now, self._offset_s, lent, noticed_s)
        seen = view.seen if view is not None else None
        if seen is not None and seen.for_jobs:
            self._joined_s[name] = since_s
        if seen is not None and seen.leaving_at_s is not None:
            self._noticed_s[name] = noticed_s
        return view
