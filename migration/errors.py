"""Migration's branch of the error tree.

MigrationError <- LayoutMismatch, StateLost, TransferFailed <- NoFreePort
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


class NoFreePort(TransferFailed):
    """This machine has no port or file descriptor left for a further connection."""


# What the kernel says of that, whoever quotes it: EADDRINUSE of a bind to any port,
# EADDRNOTAVAIL of a connection, EMFILE and ENFILE.
_NO_PORT = (
    "Address already in use",
    "Cannot assign requested address",
    "Too many open files",
)


def no_port_words(said: str) -> str | None:
    """The kernel's words for a lack of ports or descriptors in what a library said, if any."""
    return next((words for words in _NO_PORT if words in said), None)
