"""The growing cluster on emulated kubelets: Heddle's operator plans each size and moves the job.

Kubernetes, the chart's operator, its plans and the pods are real; devices are emulated, and ranks
train the stand-in (`stand_in`).  The operator's profile is as slowed as the devices are.
Invariant: nobody tells the operator what to plan; GPUs that it leaves idle are reported, and so are
those that it uses.
Source: Heddle, section 6.2 (the growing cluster).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import yaml

from benchmarks.paper.cells import Cell, cell_of, cells_of
from benchmarks.paper.measured.growth import HOLD_S, pace_errors, rates
from benchmarks.paper.measured.slowed_profile import write_slowed
from benchmarks.paper.measured.stand_in import BATCH, MODEL, SLOWDOWN, rank_main
from benchmarks.paper.tables import HEDDLE, table
from heddle_operator.resources.epoch_config_map import record_of_body
from heddle_operator.state.epoch_record import EpochRecord
from planner.cost.evaluate import cost_of
from tests.builders import heddle_job
from tests.cluster.api import NODES, Json, condition, gpus
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.installation import OPERATOR_NODE, Installation, chart_values
from tests.e2e.kubernetes.curve import Curve
from tests.e2e.kubernetes.job import Job
from tests.e2e.kubernetes.listener import Listener

JOB = "growing"
LIMIT_S = 600.0  # of the start, and of a size; other work may hold the cores
KEEPS_S = 180.0  # without another plan for so long, the operator keeps the one before
LOOK_S = 1.0
BUDGET_S = 3.0  # of a search
FOLDER = "/profiles"
PEER_TIMEOUT_S = 60  # a starved rank is no lost one
WATCHED = "a5000"  # that the paper's plan of 19 GPUs leaves out
HEAD = (
    *("GPUs used", "A5000 used", "to the first step", "break"),
    *("modelled", "last step", "pace error", "with breaks"),
)


@dataclass(frozen=True, slots=True)
class Joined:
    """A size of the cluster: its cell, and when its nodes were Ready by the monotonic clock."""

    cell: Cell
    ready_s: float


def measure() -> dict[str, Any]:
    """The sizes of the cluster, and the steps and changes of the job in them.

    Where it ends before the last size, `ended` says why; whole sizes are kept.

    Raises:
        ClusterFailed: not even the first size was trained.
    """
    cells = cells_of("growth")
    with Cluster.start([OPERATOR_NODE, *_specs(cells[0])]) as cluster:
        _install(cluster, cells[-1].listed.composition.gpu_types)
        grown, ended = [Joined(cells[0], time.monotonic())], ""
        job = Job.apply(cluster, _body())
        with Listener(job) as heard:
            try:
                _settle(job, heard, grown[0])
                for before, cell in pairwise(cells):
                    grown.append(Joined(cell, _join(cluster, before, cell)))
                    _settle(job, heard, grown[-1])
            except (ClusterFailed, TimeoutError) as error:
                ended = str(error)
                if len(grown) < 2:
                    raise ClusterFailed(f"the first size was not trained: {ended}") from None
        ended_s = grown.pop().ready_s if ended else time.monotonic()
        run = run_of(grown, _records(job), heard.curve, ended_s)
    return {"trained": {HEDDLE: run | {"ended": ended}}}


def _specs(cell: Cell, before: Cell | None = None) -> list[NodeSpec]:
    known = {node.name for node in before.listed.composition.nodes} if before else set()
    nodes = [node for node in cell.listed.composition.nodes if node.name not in known]
    return [NodeSpec(node.name, node.gpus, node.gpu_type) for node in nodes]


def _install(cluster: Cluster, gpu_types: Iterable[str]) -> None:
    """Install the chart with the slowed profile, and ranks that know of the stand-in."""
    files = cluster.folder / "profile"
    files.mkdir()
    write_slowed(files, MODEL, frozenset(gpu_types), SLOWDOWN)
    cluster.kubectl("create", "configmap", "profile", f"--from-file={files}")
    values, folder = chart_values(), f"{FOLDER}/{MODEL}"
    entry = f"--rank-entry={rank_main.__module__}:{rank_main.__name__}"
    changed = {
        "settings": {"profiles": FOLDER},
        "extraVolumes": [*values["extraVolumes"], _volume()],
        "extraVolumeMounts": [
            *values["extraVolumeMounts"],
            {"name": "profile", "mountPath": folder, "readOnly": True},
        ],
        "worker": {"extraArgs": [*values["worker"]["extraArgs"], entry]},
    }
    path = cluster.folder / "growing-values.yaml"
    path.write_text(yaml.safe_dump(changed), encoding="utf-8")
    Installation(cluster).install(f"--values={path}")


def _volume() -> Json:
    return {"name": "profile", "configMap": {"name": "profile"}}


def _body() -> Json:
    question = cells_of("growth")[0].question().workload
    return heddle_job(
        JOB,
        model={"name": MODEL},
        training={
            "globalBatch": BATCH,
            "sequenceLength": question.sequence_length,
            "precision": question.precision,
            "learningRate": 3e-4,
        },
        steps=100_000,
        planner={"budgetSeconds": BUDGET_S},
        elastic={"peerTimeoutSeconds": PEER_TIMEOUT_S},
    )


def _join(cluster: Cluster, before: Cell, cell: Cell) -> float:
    """Let the further nodes of a size join; when they were Ready with their GPUs."""
    specs = _specs(cell, before)
    for spec in specs:
        cluster.add_node(spec.name, spec.gpus, spec.gpu_type, wait=False)

    def joined(seen: Mapping[str, Json]) -> bool:
        return all(
            spec.name in seen
            and condition(seen[spec.name], "Ready") == "True"
            and gpus(seen[spec.name]) == spec.gpus
            for spec in specs
        )

    cluster.api.wait(NODES, joined, LIMIT_S, f"{cell.gpus} GPUs that are Ready")
    return time.monotonic()


def _settle(job: Job, heard: Listener, size: Joined) -> None:
    """Wait until the size has had its time, and two steps of its plan are trained.

    Raises:
        TimeoutError: they are not within the limit.
    """
    while (passed_s := time.monotonic() - size.ready_s) < LIMIT_S:
        time.sleep(LOOK_S)
        newest = next(reversed(_records(job)), None)
        if newest is None or passed_s < HOLD_S:
            continue
        is_answered = newest.composition.gpus == size.cell.gpus or passed_s > KEEPS_S
        trained = [record for record in heard.history() if record.epoch == newest.epoch]
        if is_answered and len(trained) >= 2:
            print(f"{size.cell.gpus} GPUs: {newest.plan}", file=sys.stderr, flush=True)
            return
    raise TimeoutError(f"{size.cell.gpus} GPUs took longer than {LIMIT_S:g} s")


def _records(job: Job) -> list[EpochRecord]:
    """The job's epochs in order."""
    bodies = job.epoch_bodies()
    return sorted((record_of_body(body, 0.0) for body in bodies), key=lambda one: one.epoch)


def run_of(
    grown: Sequence[Joined], records: Sequence[EpochRecord], curve: Curve, ended_s: float
) -> dict[str, Any]:
    """Steps, changes, joins and sizes as plain data, in wall seconds since the first step.

    Args:
        grown: the sizes in order.
        records: all epochs of the job in order.
        curve: what its agents said.
        ended_s: when the last size ended, by the monotonic clock.
    """
    history = curve.history()
    begun_s = history[0].start_s
    epochs = {step.epoch for step in history}
    lived = [(curve.first_step_s(one.epoch), one) for one in records if one.epoch in epochs]
    bounds = [max(begun_s, one.ready_s) for one in grown] + [ended_s]
    sizes = []
    for size, (left_s, right_s) in zip(grown, pairwise(bounds), strict=True):
        begun = [row for row in lived if row[0] < right_s]
        new = [at_s - size.ready_s for at_s, _ in begun if at_s >= left_s]
        sizes.append(_size(size.cell, begun[-1][1]) | {"first_step_s": new[0] if new else None})
    return {
        "steps": [[step.start_s - begun_s, step.end_s - begun_s] for step in history],
        "changes": [
            {
                "reason": record.reason,
                "at_s": at_s - begun_s,
                "gpus": record.plan.gpus,
                "stall_s": curve.gap_s(record.epoch),
            }
            for at_s, record in lived[1:]
        ],
        "given_up": sum(one.outcome == "aborted" for one in records),
        "joined_s": [at_s - begun_s for at_s in bounds],
        "sizes": sizes,
    }


def _size(cell: Cell, record: EpochRecord) -> dict[str, Any]:
    """The plan of a size: how many GPUs it uses, by type, and its modelled seconds a step."""
    question = cell.question()
    workload = replace(question.workload, global_batch=BATCH)
    cost = cost_of(record.plan, workload, question.composition, question.profile)
    return {
        "gpus": cell.gpus,
        "used": record.plan.gpus,
        "by_type": dict(sorted(record.plan.gpus_by_type.items())),
        "modelled_s": cost.iteration_s,
        "operator_s": record.step_s,  # of a slowed step, as the operator predicted it
    }


def breaks_s(run: Mapping[str, Any]) -> list[list[float]]:
    """By size: the breaks of training that began in it."""
    return [
        [change["stall_s"] for change in run["changes"] if left <= change["at_s"] < right]
        for left, right in pairwise(run["joined_s"])
    ]


def watched(size: Mapping[str, Any]) -> str:
    """How many A5000 of a size its plan uses."""
    used = size["by_type"].get(WATCHED, 0)
    nodes = cell_of(MODEL, f"grow-{size['gpus']}").listed.composition.nodes
    there = sum(node.gpus for node in nodes if node.gpu_type == WATCHED)
    return f"{used} of {there}" if there else "none there"


def text(found: Mapping[str, Any], load: float) -> str:
    """The page.

    Args:
        found: that was measured; `other_runs` of it are rows of stored results before this one.
        load: of the machine in the last minute of it.
    """
    run = found["trained"][HEDDLE]
    sizes = run["sizes"]
    columns = zip(sizes, breaks_s(run), rates(run), pace_errors(run), strict=True)
    rows = [_row(*each) for each in columns]
    lost = sum(change["reason"] == "loss" for change in run["changes"])
    end = f"The job ended after {sizes[-1]['gpus']} GPUs: {run['ended']}.\n\n"
    used = ", ".join(f"{count} {kind}" for kind, count in sizes[-1]["by_type"].items())
    return f"""One job on a Kubernetes of this machine, whose cluster grows by four GPUs at a time.

- Real are the API server, scheduler, kubelets and containers; the chart's operator with its watches
  and plans; and the worker pods with their process groups, their state and its movement.
- Emulated are the GPUs. Nothing here was measured on one.
- The job names GPT-Neo-2.7B, and the operator plans that. The ranks train a stand-in, which has as
  many blocks and is narrow. Each waits {SLOWDOWN:g} times the modelled time of GPT-Neo-2.7B.
- The operator's profile takes {SLOWDOWN:g} times as long too. Its searches have {BUDGET_S:g} s.
- A size lasts {HOLD_S:g} s of the wall, or until two steps of its plan are trained. The paper has
  five minutes a size. The batch is {BATCH} samples; the paper has 128.
- The job has the usual settings: a node is used after five seconds, and a change follows another
  after thirty. Silence alone counts as a loss after {PEER_TIMEOUT_S} s instead of ten.
- Pods start on the same two cores, and other work ran too: the load of the machine was {load:g} at
  the end. A large pace error is this machine's, and so are the rates and breaks beside it.

{end if run["ended"] else ""}On {sizes[-1]["gpus"]} GPUs the last plan uses {used}.
The paper's leaves out the A5000.

Ranks taken for lost: {lost}. Plans given up before they trained: {run["given_up"]}.
{_others(found.get("other_runs", ()))}
![Throughput over time](growth-kubelets.svg)

The time to the first step of the new plan runs from the moment at which the node is Ready; at the
first size, from the moment at which the job is applied. Breaks are those of the ranks that trained
before and after. Rates are samples per second of the emulated clock, which counts a step
{SLOWDOWN:g} times shorter than it took, and a break as it was.

{table(HEAD, rows)}
"""


def _others(runs: Sequence[Mapping[str, Any]]) -> str:
    """What earlier runs used at each size, a line each; nothing without one."""
    lines = [
        f"- {', '.join(map(str, run['used']))} GPUs, at a load of {run['load']:g}" for run in runs
    ]
    if not lines:
        return ""
    why = "Other runs used at these sizes (late ranks of a starved machine are the likely cause):"
    return "\n".join(("", why, "", *lines, ""))


def _row(
    size: Mapping[str, Any], breaks: Sequence[float], both: tuple[float, float], error: float
) -> tuple[str, ...]:
    with_breaks, last = both
    first_s = size["first_step_s"]
    return (
        f"{size['used']} of {size['gpus']}",
        watched(size),
        "the plan stayed" if first_s is None else f"{first_s:.1f} s",
        ", ".join(f"{seconds:.2f} s" for seconds in breaks) or "none",
        f"{BATCH / size['modelled_s']:.1f}",
        f"{last:.1f}",
        f"{error:+.1%}",
        f"{with_breaks:.1f}",
    )
