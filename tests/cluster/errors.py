"""What can keep a cluster from starting, as errors whose message is one sentence for the user."""

from __future__ import annotations

from planner.errors import HeddleError


class AssetMissing(HeddleError):
    """A binary, a tool or a right is missing; the message names the command that provides it."""


class ClusterFailed(HeddleError):
    """A part of the cluster did not do what it was told; the message ends with its last words."""
