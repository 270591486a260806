"""Nodes that are not ready again and again: each return is waited for twice as long.

A plan that takes such a node in is given up when it goes, and all ranks stand still for nothing.
Invariant: a node that was not ready once does not flap; one that stays ready for the window flaps
no longer.  An operator that starts anew has seen nothing of what was before.
Source: BGP's route flap damping (RFC 2439); Kubernetes' back-off of containers that crash.
"""

from __future__ import annotations

from heddle_operator.state.node_flap import NodeFlap
from planner.pauses import doubled_s

WINDOW_S = 600.0  # departures that are older count for nothing
PAUSE_S, PAUSE_LIMIT_S = 30.0, 600.0  # after the second departure within it; then twice ...


class NodeFlaps:
    """When each node ceased to be ready, and when it was ready again, by the loop's clock."""

    def __init__(self) -> None:
        self._ready: dict[str, str | None] = {}  # since when by its own word; None: it is not
        self._left_s: dict[str, tuple[float, ...]] = {}
        self._began_s: dict[str, float] = {}
        self._back_s: dict[str, float] = {}

    def seen(self, name: str, ready_since: str | None, now: float) -> None:
        """A node says since when it has been ready; None: it is not.

        A time that differs from the one before tells of a departure that nobody saw.
        """
        if name not in self._ready:
            self._sweep(now)
        before = self._ready.get(name)
        self._ready[name] = ready_since
        if before == ready_since:
            return
        if before is not None:
            recent = self._recent(name, now)
            if not recent:
                self._began_s[name] = now
            self._left_s[name] = (*recent, now)
        if ready_since is not None:
            self._back_s[name] = now

    def gone(self, name: str) -> None:
        """A Node was deleted; one of its name may come back within the window."""
        self._ready.pop(name, None)
        if name not in self._left_s:
            self._forget(name)

    def flap(self, name: str, now: float) -> NodeFlap | None:
        """How long the node must stay ready; None if no longer than others."""
        if name not in self._left_s:
            return None
        times = len(self._recent(name, now))
        if not times:
            self._forget(name)
        if times < 2:
            return None
        pause_s = doubled_s(PAUSE_S, times - 1, PAUSE_LIMIT_S)
        return NodeFlap(name, self._began_s[name], pause_s, self._back_s.get(name, now) + pause_s)

    def _sweep(self, now: float) -> None:
        """Forget nodes that are gone and flap no longer: nobody asks for them any more.

        A cloud gives each of its nodes a new name.
        """
        away = [name for name in self._left_s if name not in self._ready]
        for name in away:
            if not self._recent(name, now):
                self._forget(name)

    def _forget(self, name: str) -> None:
        for known in (self._left_s, self._began_s, self._back_s):
            known.pop(name, None)

    def _recent(self, name: str, now: float) -> tuple[float, ...]:
        return tuple(at for at in self._left_s.get(name, ()) if now - at < WINDOW_S)
