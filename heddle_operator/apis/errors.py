"""The operator's branch of the error tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from planner.errors import HeddleError

SPEC_FIELDS = {  # how a job calls the fields of a request to the planner
    "budget_s": "spec.planner.budgetSeconds",
    "max_gpus": "spec.elastic.maxGPUs",
    "min_holders": "spec.elastic.minHolders",
    "zero": "spec.planner.zero",
}


class OperatorError(HeddleError):
    """The operator cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One of the mistakes in a job, or of what is given with it.

    Attributes:
        message: names the field, what it holds and what it may hold.
        code: of `planner.errors.CODES`.
        field: None: it is of none, or of several.
    """

    message: str
    code: str = "Refused"
    field: str | None = None

    @classmethod
    def of(cls, error: HeddleError) -> Self:
        """The mistake that an error is about."""
        return cls(str(error), error.code, error.field)


class InvalidJob(OperatorError):
    """A HeddleJob is wrong; the message has a line for each mistake that was found."""

    def __init__(
        self,
        *words: object,
        field: str | None = None,
        code: str = "",
        mistakes: Sequence[Mistake] = (),
    ) -> None:
        """Say what is wrong; without `mistakes` the words are about one."""
        super().__init__(*words, field=field, code=code)
        self.mistakes = tuple(mistakes) or (Mistake.of(self),)

    @classmethod
    def of(cls, mistakes: Sequence[Mistake]) -> Self:
        """The error of mistakes, each message once; with the code and field of the only one."""
        found = tuple({mistake.message: mistake for mistake in mistakes}.values())
        words = "\n".join(mistake.message for mistake in found)
        if len(found) > 1:
            return cls(words, code="Refused", mistakes=found)
        return cls(words, field=found[0].field, code=found[0].code, mistakes=found)


class InvalidSettings(OperatorError):
    """A file of settings is wrong; the message names the key, its value and the allowed range."""


class ClusterConflict(OperatorError):
    """Another operator was first; look again and decide anew."""


class ClusterUnavailable(OperatorError):
    """The cluster did not do what was asked, and may do it later; the old plan trains on.

    Attributes:
        again_s: seconds after which another try may do; None: soon.
    """

    def __init__(self, *words: object, again_s: float | None = None) -> None:
        """Say why."""
        super().__init__(*words)
        self.again_s = again_s


class NameTaken(OperatorError):
    """An object that the job needs is somebody else's; the message names it and what to do."""


class EarlierJobRemains(NameTaken):
    """The object is of an earlier job of the same name, and goes by itself."""


class RecordTooLarge(OperatorError):
    """The record of an epoch does not fit into a ConfigMap; the old plan trains on."""


class NoHostPort(OperatorError):
    """All ports of the range for pods with the network of their host are taken on a node."""


class NewerRecord(OperatorError):
    """A newer operator wrote an epoch record; the message names it."""


class InvalidArguments(OperatorError):
    """Another trainer's arguments cannot become a job; the message names the argument."""


class InvalidScript(OperatorError):
    """A script of the demo is wrong; the message names the event."""


class ProcessFailed(OperatorError):
    """A process that the operator started ended with an error; the message holds its last words."""
