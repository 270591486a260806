"""The operator's branch of the error tree."""

from planner.errors import HeddleError

SPEC_FIELDS = {  # how a job calls the fields of a request to the planner
    "budget_s": "spec.planner.budgetSeconds",
    "max_gpus": "spec.elastic.maxGPUs",
    "min_holders": "spec.elastic.minHolders",
    "zero": "spec.planner.zero",
}


class OperatorError(HeddleError):
    """The operator cannot do what was asked."""


class InvalidJob(OperatorError):
    """A HeddleJob is wrong; the message names the field, what it holds and what it may hold."""


class InvalidSettings(OperatorError):
    """A file of settings is wrong; the message names the key, its value and the allowed range."""


class ClusterConflict(OperatorError):
    """Another operator was first; look again and decide anew."""


class ClusterUnavailable(OperatorError):
    """The cluster did not do what was asked, and may do it later; the old plan trains on."""


class NameTaken(OperatorError):
    """An object that the job needs is somebody else's; the message names it and what to do."""


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
