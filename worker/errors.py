"""The worker's branch of the error tree.

WorkerError <- EngineFailed, InvalidDataset, RendezvousFailed
"""

from planner.errors import HeddleError


class WorkerError(HeddleError):
    """A worker cannot do what it was told."""


class EngineFailed(WorkerError):
    """A training step did not finish; the message says what broke."""


class InvalidDataset(WorkerError):
    """A dataset is missing, damaged, too small, or does not fit the model."""


class RendezvousFailed(WorkerError):
    """The ranks of an epoch were not all there, so its world was not formed."""
