"""A node that is not ready again and again, and how long it is waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeFlap:
    """A node that was not ready more than once within a window.

    Attributes:
        began_s: when it was first not ready, of all times that follow each other within a window.
        pause_s: how long it has to be ready before a plan uses it.
        until_s: when it will have been, unless it is not ready again before.
    """

    node: str
    began_s: float
    pause_s: float
    until_s: float

    @property
    def words(self) -> str:
        """The remedy, in words."""
        return (
            f"node {self.node} is not ready again and again; a plan uses it once it has been ready "
            f"for {self.pause_s:g} s"
        )
