"""The worker's branch of the error tree.

WorkerError <- CheckpointUnusable, DeviceSilent, DeviceUnusable, EngineFailed, FabricHangs,
               HalfUpdated, InvalidDataset, InvalidOutput, InvalidWeights, NonFinite, NoRoom,
               RendezvousFailed, StoreFailed
DeviceUnusable <- SetupUnusable
RendezvousFailed <- StoreGone <- NoPortToStore
"""

from planner.errors import HeddleError
from planner.wording import first_line


class WorkerError(HeddleError):
    """A worker cannot do what it was told."""


class CheckpointUnusable(WorkerError):
    """A checkpoint is damaged, of a newer version, or of another job."""


class StoreFailed(WorkerError):
    """A store of checkpoints failed."""


class DeviceUnusable(WorkerError):
    """A GPU cannot be trained on as it was asked for."""


class SetupUnusable(DeviceUnusable):
    """The ranks of a job cannot work together as it is set up; no single GPU is to blame."""


class DeviceSilent(WorkerError):
    """The device does not answer: its process ends, and the agent starts another one."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the device has not answered for {waited_s:g} s since its world broke")


class FabricHangs(WorkerError):
    """Ranks that met did not connect, or their first operations did not end: it is the network."""


class EngineFailed(WorkerError):
    """A training step did not finish; the message says what broke."""


class HalfUpdated(WorkerError):
    """An update ended in the middle: some tensors have it, others lack it, and none counts."""

    def __init__(self, step: int, cause: BaseException) -> None:
        said = first_line(cause)
        super().__init__(f"the update of step {step} broke: {type(cause).__name__}: {said}")


class InvalidDataset(WorkerError):
    """A dataset is missing, damaged, too small, or does not fit the model."""


class InvalidOutput(WorkerError):
    """An output folder belongs to another run, or does not say to which."""


class InvalidWeights(WorkerError):
    """A folder of weights is missing, damaged, of another model, or cannot be written as asked."""


class NoRoom(WorkerError):
    """A change does not fit beside what a rank holds; nothing of it was allocated."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"out of memory: the change needs {needed_bytes / 1e6:,.0f} MB beside the running "
            f"plan, {max(0, free_bytes) / 1e6:,.0f} MB are free"
        )


class NonFinite(WorkerError):
    """Loss or gradient norm of a step is not finite, and the job is to stop then."""

    def __init__(self, step: int, loss: float, gradient_norm: float) -> None:
        super().__init__(
            f"step {step} has loss {loss:g} and gradient norm {gradient_norm:g}, which is not "
            "finite; nothing of it was applied"
        )


class RendezvousFailed(WorkerError):
    """The ranks of an epoch were not all there, so its world was not formed."""


class StoreGone(RendezvousFailed, RuntimeError):
    """The store of an epoch does not answer; a RuntimeError as those of torch's stores are."""

    def __init__(self, address: str, why: object) -> None:
        super().__init__(f"the store at {address} is gone: {why}")


class NoPortToStore(StoreGone):
    """This machine has no port or file descriptor left for a connection to the store."""

    def __init__(self, address: str, why: object) -> None:
        RendezvousFailed.__init__(
            self, f"no port or file descriptor is left to reach the store at {address}: {why}"
        )
