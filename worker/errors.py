"""The worker's branch of the error tree.

WorkerError <- EngineFailed, EpochSuperseded, InvalidDataset
"""

from planner.errors import HeddleError


class WorkerError(HeddleError):
    """A worker cannot do what it was told."""


class EngineFailed(WorkerError):
    """A training step did not finish; the message says what broke."""


class EpochSuperseded(WorkerError):
    """A newer epoch has taken over; this one's ranks stop."""


class InvalidDataset(WorkerError):
    """A dataset is missing, damaged, too small, or does not fit the model."""
