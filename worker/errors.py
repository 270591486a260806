"""The worker's branch of the error tree.

WorkerError <- EngineFailed, InvalidDataset, InvalidWeights, NonFinite, RendezvousFailed
"""

from planner.errors import HeddleError


class WorkerError(HeddleError):
    """A worker cannot do what it was told."""


class EngineFailed(WorkerError):
    """A training step did not finish; the message says what broke."""


class InvalidDataset(WorkerError):
    """A dataset is missing, damaged, too small, or does not fit the model."""


class InvalidWeights(WorkerError):
    """A folder of weights is missing, damaged, of another model, or cannot be written as asked."""


class NonFinite(WorkerError):
    """Loss or gradient norm of a step is not finite, and the job is to stop then."""

    def __init__(self, step: int, loss: float, gradient_norm: float) -> None:
        super().__init__(
            f"step {step} has loss {loss:g} and gradient norm {gradient_norm:g}, which is not "
            "finite; nothing of it was applied"
        )


class RendezvousFailed(WorkerError):
    """The ranks of an epoch were not all there, so its world was not formed."""
