"""Events of the nodes of a run: they join, are drained, are killed, each at a step.

Source: the format is our own; a node is written as in a nodes file (`planner.cluster.composition`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heddle_operator.apis.errors import InvalidScript
from planner.cluster.composition import LABEL, Composition, Node
from planner.errors import InvalidComposition
from planner.model.workload import MOST_COUNT
from planner.profiles.profile import Profile
from planner.strict_yaml import read_yaml
from planner.wording import counted, did_you_mean, kind_of

MOST_NOTICE_S = 1e9
MOST_GPUS = 32  # of a node: 19 ranks run in real time on two cores, many more would only wait
Verb = Literal["join", "drain", "kill"]
VERBS: tuple[Verb, ...] = ("join", "drain", "kill")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens once the job has completed `at_step` steps.

    Attributes:
        node: that joins.
        notice_s: of a drain: the power of the node fails then; infinite: the drain waits until the
            job has left the node.
    """

    at_step: int
    verb: Verb
    name: str
    node: Node | None = None
    notice_s: float = math.inf

    def __str__(self) -> str:
        return f"{self.verb} {self.name}"


def load_nodes(path: Path) -> Composition:
    """Read a nodes file.

    Raises:
        InvalidScript: it cannot be read or is not YAML.
        InvalidComposition: it is not a list of nodes.
    """
    try:
        return Composition.from_json(read_yaml(path, "nodes file", InvalidScript))
    except InvalidComposition as error:
        raise InvalidComposition(
            f"nodes file {path}: {error}", field=error.field, code=error.code
        ) from None


def load_script(path: Path, nodes: Composition) -> tuple[Event, ...]:
    """Read a script: a list of `{at_step: 40, join: {name, type, gpus}}`, drain or kill: NAME.

    A drain may have `notice_s`.

    Raises:
        InvalidScript: the first mistake, with the event it is in.
    """
    rows = read_yaml(path, "script file", InvalidScript)
    if not isinstance(rows, list):
        raise InvalidScript(
            f"script {path} holds {kind_of(rows)}; it must be a list of events", code="Malformed"
        )
    events = tuple(_event(row, f"script {path}, event {i}") for i, row in enumerate(rows, 1))
    check_script(events, nodes, str(path))
    return tuple(sorted(events, key=lambda event: event.at_step))


def check_script(events: tuple[Event, ...], nodes: Composition, name: str) -> None:
    """Refuse a script in which a node joins twice, or leaves without being there.

    Raises:
        InvalidScript: names the event.
    """
    present = {node.name for node in nodes.nodes}
    for event in sorted(events, key=lambda event: event.at_step):
        if (event.name in present) == (event.verb == "join"):
            what = "is there already" if event.verb == "join" else "is not there"
            raise InvalidScript(
                f"script {name}, step {event.at_step}: cannot {event}, as {event.name!r} {what}; "
                f"there are {', '.join(sorted(present)) or 'no nodes'}",
                code="Contradiction",
            )
        present ^= {event.name}


def check_nodes(nodes: Composition, script: tuple[Event, ...], profile: Profile) -> None:
    """Refuse nodes that cannot be processes of this machine.

    Raises:
        InvalidScript: there is none; a name that cannot be that of a pod's folder; more ranks than
            a machine can run; a GPU type that the profile does not hold.
    """
    if not nodes.nodes:
        raise InvalidScript("there is no node; write `- name: ...` for each node", code="Missing")
    for sentence in too_large(nodes, script):
        raise InvalidScript(sentence, field="gpus", code="OutOfRange")
    profiled = tuple(sorted(profile.types))
    joined = tuple(event.node for event in script if event.node is not None)
    for node in (*nodes.nodes, *joined):
        if not LABEL.fullmatch(node.name):
            raise InvalidScript(
                f"node {node.name[:80]!r} is not a valid name; use up to 63 letters, digits, "
                "dots and dashes, for example rack1-a",
                field="name",
                code="Malformed",
            )
        if node.gpu_type not in profiled:
            raise InvalidScript(
                f"node {node.name!r} is of GPU type {node.gpu_type!r}, for which {profile.model} "
                f"has no profile; profiled are {', '.join(profiled)}",
                field="type",
                code="Unknown",
            )


def too_large(nodes: Composition, script: tuple[Event, ...]) -> list[str]:
    """A sentence for each node, there or joining, with more ranks than a machine can run."""
    joined = tuple(event.node for event in script if event.node is not None)
    return [
        f"node {node.name!r} has {node.gpus} GPUs; each is a process of this machine, so give a "
        f"node at most {MOST_GPUS}"
        for node in (*nodes.nodes, *joined)
        if node.gpus > MOST_GPUS
    ]


def check_steps(events: tuple[Event, ...], steps: int, name: str) -> None:
    """Refuse an event after the last step of a job.

    Raises:
        InvalidScript: names the event.
    """
    for event in events:
        if event.at_step > steps:
            raise InvalidScript(
                f"script {name} has at_step {event.at_step:,} ({event}), and the job has "
                f"{counted(steps, 'step')}; give at most {steps:,}, or raise spec.steps",
                field="at_step",
                code="OutOfRange",
            )


def _event(row: object, where: str) -> Event:
    if not isinstance(row, Mapping):
        raise InvalidScript(
            f"{where} is {row!r}; write for example {{at_step: 40, drain: NODE}}", code="Malformed"
        )
    verbs = [verb for verb in VERBS if verb in row]
    if "notice_s" in row and len(verbs) == 1 and verbs != ["drain"]:
        raise InvalidScript(
            f"{where} has notice_s with {verbs[0]}; notice_s goes with drain, so leave it out or "
            "write drain",
            field="notice_s",
            code="Contradiction",
        )
    known = {"at_step", "notice_s", *VERBS} if "drain" in verbs else {"at_step", *VERBS}
    unknown = sorted(str(key) for key in set(row) - known)
    if unknown or len(verbs) != 1:
        found = f"{len(verbs)} things to do"
        if unknown:
            found = f"the unknown key {unknown[0]!r}{did_you_mean(unknown[0], VERBS)}"
        raise InvalidScript(
            f"{where} has {found}; it takes at_step, one of {', '.join(VERBS)}, and notice_s with "
            "drain",
            code="Malformed",
        )
    step, verb = row.get("at_step"), verbs[0]
    if not isinstance(step, int) or isinstance(step, bool):
        raise InvalidScript(
            f"{where} has at_step {step!r}; it must be a number of completed steps",
            field="at_step",
            code="Malformed",
        )
    if not 0 <= step <= MOST_COUNT:
        raise InvalidScript(
            f"{where} has at_step {step:,}; it must be from 0 to {MOST_COUNT:,} completed steps",
            field="at_step",
            code="OutOfRange",
        )
    if verb != "join":
        if not isinstance(row[verb], str):
            raise InvalidScript(
                f"{where} has {verb} {row[verb]!r}; it must be the name of a node",
                field=verb,
                code="Malformed",
            )
        return Event(step, verb, row[verb], notice_s=_notice_s(row, where))
    try:
        node = Composition.from_json([row["join"]]).nodes[0]
    except InvalidComposition as error:
        raise InvalidScript(f"{where}: {error}", field=error.field, code=error.code) from None
    return Event(step, "join", node.name, node)


def _notice_s(row: Mapping[object, object], where: str) -> float:
    """How long a drain waits; it waits for the job unless the script says otherwise."""
    said = row.get("notice_s", math.inf)
    if isinstance(said, bool) or not isinstance(said, int | float):
        said = math.nan
    if not (said == math.inf or 0 <= said <= MOST_NOTICE_S):
        raise InvalidScript(
            f"{where} has notice_s {reprlib.repr(said)}; it must be a number of "
            f"seconds, at most {MOST_NOTICE_S:g}",
            field="notice_s",
            code="Malformed",
        )
    return float(said)
