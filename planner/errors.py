"""The error tree of Heddle.

Every error a user can cause ends as one sentence, never as a traceback.

    HeddleError
      PlanningError      InvalidComposition, InvalidWorkload, InvalidPlan, InvalidRequest, NoPolicy,
                         InvalidPolicy, PolicyMisfit, UnprofiledConfiguration, Infeasible,
                         IrregularPlan, InvalidMeasurements
      MigrationError     (migration/errors.py)
      WorkerError        (worker/errors.py)
      OperatorError      (heddle_operator/apis/errors.py)

A message says what was found, what is allowed, and what to do.  A class of several mistakes has a
code for each, which programs and tests read in place of the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

CODES = {
    "Contradiction": "two things that are given do not go together",
    "Damaged": "the content is another than its own record states",
    "Failed": "a process or a call that was started failed",
    "GivenTwice": "a name or a value is given more than once",
    "Malformed": "the value has another form or kind than is read",
    "Mismatch": "it is of another model, batch, tokenizer or cluster",
    "Missing": "the field, file, object or package is not there",
    "NoHolder": "a piece of the state has no holder left",
    "NotTrainedFor": "the policy was trained for other questions",
    "OutOfRange": "the number is beyond what is allowed",
    "PriceMissing": "a GPU type has no price",
    "Refused": "this machine or this folder cannot do it; the message lists why",
    "Taken": "the output is somebody else's, or holds something already",
    "Unknown": "no such name; the message lists those that exist, or the nearest",
    "Unreadable": "the file cannot be read or parsed",
    "Unsupported": "the value is understood and not supported",
    "Unwritable": "the file or folder cannot be written",
}
FIELD = "{field}"  # where a sentence names its field


class HeddleError(Exception):
    """Root of the tree.  `str(error)` is one clear sentence for the user.

    A sentence says `{field}` where it names its field, as each front end has its own name for it.

    Attributes:
        field: of the request that is wrong, by its own name; None: none.
        code: one of CODES, or of the words of checkpoints; empty where the class says it.
        remedy: what to do, where a reader may do without it; it ends the sentence.
    """

    def __init__(
        self, *words: object, field: str | None = None, code: str = "", remedy: str = ""
    ) -> None:
        """Say what is wrong, and of which field."""
        super().__init__(*words)
        self.field, self.code, self.remedy = field, code, remedy

    def __str__(self) -> str:
        return self.named({})

    def named(self, names: Mapping[str, str]) -> str:
        """The sentence, with the field called as a front end calls it."""
        sentence = super().__str__()
        return self._named(f"{sentence}; {self.remedy}" if self.remedy else sentence, names)

    @property
    def finding(self) -> str:
        """The sentence without the remedy."""
        return self._named(super().__str__(), {})

    def _named(self, sentence: str, names: Mapping[str, str]) -> str:
        if self.field is None:
            return sentence
        return sentence.replace(FIELD, names.get(self.field, self.field))


class PlanningError(HeddleError):
    """The planner cannot answer what was asked."""


class InvalidComposition(PlanningError):
    """A composition, or a file that describes one, is wrong."""


class InvalidWorkload(PlanningError):
    """A model or a training setting is wrong or unknown."""


class InvalidPlan(PlanningError):
    """A plan does not tile the model, the batch or the nodes; the message names every fault."""


class InvalidRequest(PlanningError):
    """Two wishes contradict each other, or one cannot be meant; the message names them."""


class NoPolicy(PlanningError):
    """There is no learned policy for the model that was asked for."""


class InvalidPolicy(PlanningError):
    """The files of a policy are damaged, or of another version; the message names the folder."""


class PolicyMisfit(PlanningError):
    """A policy was not trained for what is asked; the message names what it knows."""


class IrregularPlan(PlanningError):
    """Another trainer cannot run the plan; the message names what is irregular."""


class UnprofiledConfiguration(PlanningError):
    """The profile lacks a key that was asked for; the message names the key."""


class Infeasible(PlanningError):
    """No plan satisfies the request; the message names the term that binds."""


class InvalidMeasurements(PlanningError):
    """A folder of measured plans, or the facts about it, is wrong; the message names the file."""
