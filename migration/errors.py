"""Migration's branch of the error tree.

MigrationError <- LayoutMismatch, StateLost, TransferFailed
"""

from planner.errors import HeddleError


class MigrationError(HeddleError):
    """State cannot be moved."""


class LayoutMismatch(MigrationError):
    """The members of an epoch do not sit where its plans say."""


class StateLost(MigrationError):
    """A piece of the state has no holder left; the message names the piece."""


class TransferFailed(MigrationError):
    """A message did not arrive, or did not arrive whole; the old state is untouched."""
