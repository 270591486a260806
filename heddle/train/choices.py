"""From a job and what a user chose to what is run, or to everything that is wrong with it.

Pure but for files that are read.  Invariant: what is about the cluster alone and means nothing on
one machine is said, never silently left out; everything else is honoured or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from heddle.train.checkpoints import saved_here
from heddle.train.machine import ALIAS, Machine, why_no_gpus
from heddle.train.preconditions.given_job import with_options
from heddle.train.preconditions.given_paths import why_impossible, wrong_paths
from heddle.train.preconditions.given_plan import given_plan
from heddle.train.script import (
    Event,
    check_script,
    check_steps,
    load_nodes,
    load_script,
    too_large,
)
from heddle_operator.apis.errors import InvalidJob, InvalidScript, Mistake
from heddle_operator.apis.heddlejob import HeddleJob, load_job, mistakes_of
from heddle_operator.apis.spec import Output
from heddle_operator.state.plan_reply import ReferencedPlan
from planner.cluster.composition import Composition, Node
from planner.errors import HeddleError
from planner.model.workload import Zero
from planner.strict_yaml import read_yaml
from worker.device.gpus import Driver, Nvml
from worker.log_lines import Format
from worker.trainable import beyond_positions

NODE = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of a user beside the job.

    Attributes:
        ranks: processes; None: one for each core.
        nodes: file of nodes, which may be of emulated types.
        script: file of events.
        output: folder for what the run leaves, in place of `spec.output.path`.
        device: `cpu` or `cuda`, in place of `spec.worker.device`.
        log_format: of the ranks' logs, in place of `spec.worker.logFormat`.
        plan: file of the plan that the run follows, in mode Manual.
        zero: in place of `spec.planner.zero`.
    """

    ranks: int | None = None
    nodes: Path | None = None
    script: Path | None = None
    output: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    log_format: Format | None = None
    plan: Path | None = None
    zero: Zero | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is run.

    Attributes:
        job: as it runs here.
        nodes: that are there at the start.
        script: what happens to them.
        joiners: what the key `a` adds.
        emulates: nodes are of types of the model's profile, and ranks wait for their time.
        notes: what of the job means nothing here, a sentence each.
        plan: that the run follows; None: the planner's.
        begins_at: step of the checkpoint that is there; None: there is none.
    """

    job: HeddleJob
    nodes: Composition
    script: tuple[Event, ...]
    joiners: tuple[Node, ...]
    emulates: bool
    notes: tuple[str, ...]
    plan: ReferencedPlan | None = None
    begins_at: int | None = None

    @property
    def most_ranks(self) -> int:
        """Of all nodes that are ever there."""
        joined = sum(event.node.gpus for event in self.script if event.node is not None)
        return self.nodes.gpus + joined

    @property
    def is_measured(self) -> bool:
        """Whether the processor trains, whose profile is measured first."""
        return not self.emulates and self.job.spec.worker.device != "CUDA"

    def of_run(self, run: str, begins_at: int | None) -> Choices:
        """The same for a run with an id, which stands for the uid of a job on a cluster."""
        metadata = self.job.metadata.model_copy(update={"uid": run})
        job = self.job.model_copy(update={"metadata": metadata})
        return replace(self, job=job, begins_at=begins_at)


def choose(
    source: Path, options: TrainOptions, machine: Machine, driver: Driver | None = None
) -> Choices:
    """What is run.

    Raises:
        InvalidJob: everything that is wrong, a line for each mistake.
    """
    wrong: list[Mistake] = []
    job = _job(source, options, wrong)
    is_cuda = (options.device or (job.spec.worker.device.lower() if job else "")) == "cuda"
    driver = driver or Nvml()
    machine = machine.on_gpus(driver) if is_cuda else machine
    nodes, script = _nodes_and_script(options, machine, wrong)
    if job is not None:
        wrong += why_impossible(lambda: check_steps(script, job.spec.steps, str(options.script)))
        wrong += wrong_paths(job, _output_of(job, options))
        wrong += _limits(job, nodes, script, options.plan)
    if is_cuda:
        most = _most_gpus(nodes or _here(options, machine))
        wrong += why_no_gpus(driver, most, options.device)
    plan = _given(options.plan, job, nodes, machine, wrong)
    if wrong or job is None or nodes is None:
        raise InvalidJob.of(wrong)
    emulates = nodes.nodes[0].gpu_type != machine.gpu_type
    run, notes = as_run_here(
        job, _output_of(job, options), emulates, options.log_format, is_cuda=is_cuda
    )
    return Choices(
        job=_following(run, plan),
        nodes=nodes,
        script=script,
        joiners=(_joiner(nodes.nodes[0], emulates),),
        emulates=emulates,
        notes=notes,
        plan=plan,
    )


def _nodes_and_script(
    options: TrainOptions, machine: Machine, wrong: list[Mistake]
) -> tuple[Composition | None, tuple[Event, ...]]:
    """The nodes and what happens to them; None, and every mistake in `wrong`, if they have any."""
    nodes = _nodes(options, machine, wrong)
    if options.ranks is not None and options.nodes is not None:
        both = "--ranks and --nodes both say how many processes there are; give one"
        wrong.append(Mistake(both, "Contradiction", "ranks"))
    if nodes is None:
        return None, ()
    script = _script(options.script, nodes, machine, wrong) if options.script is not None else ()
    wrong += _kinds_mixed(nodes, script, machine)
    wrong += [Mistake(each, "OutOfRange", "gpus") for each in too_large(nodes, script)]
    return nodes, script


def _nodes(options: TrainOptions, machine: Machine, wrong: list[Mistake]) -> Composition | None:
    if options.nodes is None:
        return _here(options, machine)
    try:
        return _named(load_nodes(options.nodes), machine)
    except HeddleError as error:
        wrong.append(Mistake.of(error))
        return None


def _here(options: TrainOptions, machine: Machine) -> Composition:
    """This machine as the only node."""
    ranks = options.ranks or machine.usual_ranks
    return Composition((Node(name=NODE, gpu_type=machine.gpu_type, gpus=ranks),))


def _script(
    path: Path, nodes: Composition, machine: Machine, wrong: list[Mistake]
) -> tuple[Event, ...]:
    try:
        found = load_script(path, nodes)
    except HeddleError as error:
        wrong.append(Mistake.of(error))
        found = ()
    script = tuple(
        replace(event, node=_own(event.node, machine)) if event.node else event for event in found
    )
    wrong += why_impossible(lambda: check_script(script, nodes, str(path)))
    return script


def _most_gpus(nodes: Composition) -> int:
    return max(node.gpus for node in nodes.nodes)


def _output_of(job: HeddleJob, options: TrainOptions) -> Path:
    usual = job.spec.output.path if job.spec.output else f"{job.name}-output"
    return options.output or Path(usual)


def _joiner(like: Node, emulates: bool) -> Node:
    """The node that a key adds: as one that is there, or one rank of this machine."""
    gpus = like.gpus if emulates else 1
    price = None if like.price is None else like.price * gpus / like.gpus
    return Node(name="added", gpu_type=like.gpu_type, gpus=gpus, price=price)


def as_run_here(
    job: HeddleJob,
    output: Path,
    emulates: bool,
    log_format: Format | None = None,
    *,
    is_cuda: bool = False,
) -> tuple[HeddleJob, tuple[str, ...]]:
    """The job without what only a cluster has, and a sentence for each thing that was left out."""
    spec, notes = job.spec, list(job.notes)
    elastic = spec.elastic
    if elastic.gpu_types.allow and not emulates and not is_cuda:
        allowed = ", ".join(elastic.gpu_types.allow)
        notes.append(
            f"spec.elastic.gpuTypes.allow ({allowed}) is ignored here, because the CPU trains"
        )
        elastic = elastic.model_copy(update={"gpu_types": type(elastic.gpu_types)()})
    if spec.model.config_ref is not None:
        notes.append("spec.model.configRef is ignored here; the model's own folder or code is read")
    if spec.worker.template:
        notes.append("spec.worker.template is ignored here, because there are no pods")
    training = job.training
    beyond = beyond_positions(job.workload.model, training.config, training.sequence_length)
    if beyond is not None:
        notes.append(beyond)
    worker = spec.worker.model_copy(
        update={
            "log_format": log_format or spec.worker.log_format,
            "template": {},
            "device": "CUDA" if is_cuda else "CPU",
        }
    )
    update = {"elastic": elastic, "output": Output(path=str(output)), "worker": worker}
    here = job.model_copy(update={"spec": spec.model_copy(update=update)})
    return saved_here(here, output), tuple(notes)


def _job(source: Path, options: TrainOptions, wrong: list[Mistake]) -> HeddleJob | None:
    """The job; None, and all of its mistakes in `wrong`, if it has any."""
    try:
        data: object = read_yaml(source, "job file", InvalidJob, "HeddleJob")
        has_output = options.output is not None
        data = with_options(data, has_output=has_output, zero=options.zero)
        mistakes = mistakes_of(data)
        if mistakes:
            wrong += [replace(each, message=f"{source}: {each.message}") for each in mistakes]
            return None
        return load_job(data) if isinstance(data, Mapping) else None
    except HeddleError as error:
        wrong.append(Mistake.of(error))
        return None


def _given(
    file: Path | None,
    job: HeddleJob | None,
    nodes: Composition | None,
    machine: Machine,
    wrong: list[Mistake],
) -> ReferencedPlan | None:
    """The plan that the run follows; None, and its mistake in `wrong`, if it cannot."""
    if file is None or job is None or nodes is None:
        return None
    is_measured = nodes.nodes[0].gpu_type == machine.gpu_type
    try:
        plan = given_plan(file, job.workload, nodes, is_measured)
    except HeddleError as error:
        wrong.append(Mistake.of(error))
        return None
    return ReferencedPlan(str(file), plan, kind="file")


def _following(job: HeddleJob, plan: ReferencedPlan | None) -> HeddleJob:
    """The job in mode Manual, if it follows a plan."""
    if plan is None:
        return job
    elastic = job.spec.elastic.model_copy(update={"mode": "Manual"})
    update = {"elastic": elastic, "plan_ref": plan.name}
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})


def _named(nodes: Composition, machine: Machine) -> Composition:
    if not nodes.nodes:
        raise InvalidScript("there is no node; write `- name: ...` for each node", code="Missing")
    return Composition(tuple(_own(node, machine) for node in nodes.nodes))


def _own(node: Node, machine: Machine) -> Node:
    """The node; type `cpu` is this machine's processor."""
    return replace(node, gpu_type=machine.gpu_type) if node.gpu_type == ALIAS else node


def _kinds_mixed(nodes: Composition, script: tuple[Event, ...], machine: Machine) -> list[Mistake]:
    """A rank either waits for an emulated device's time or does not; those that meet must agree."""
    joined = [event.node for event in script if event.node is not None]
    types = {node.gpu_type for node in (*nodes.nodes, *joined)}
    if machine.gpus and types != {machine.gpu_type}:
        others = ", ".join(sorted(types - {machine.gpu_type}))
        said = (
            f"nodes are of {others}, and the GPUs of this machine are {machine.gpu_type}; write "
            "that type, or leave --device out to emulate others"
        )
        return [Mistake(said, "Mismatch", "type")]
    if machine.gpu_type not in types or types == {machine.gpu_type}:
        return []
    others = ", ".join(sorted(types - {machine.gpu_type}))
    said = (
        f"nodes are of this machine's type {machine.gpu_type} and of the emulated {others}; a run "
        "is emulated on all nodes or on none"
    )
    return [Mistake(said, "Contradiction", "type")]


def _limits(
    job: HeddleJob, nodes: Composition | None, script: tuple[Event, ...], plan: Path | None
) -> list[Mistake]:
    elastic, found = job.spec.elastic, []
    if elastic.mode == "Manual" and plan is None:
        said = (
            "spec.elastic.mode Manual follows a ConfigMap of a cluster; on one machine give the "
            "plan with --plan, or use Auto or Recommend"
        )
        found.append(Mistake(said, "Unsupported", "spec.elastic.mode"))
    joined = sum(event.node.gpus for event in script if event.node is not None)
    if nodes is not None and nodes.gpus + joined < elastic.min_gpus:
        said = (
            f"spec.elastic.minGPUs is {elastic.min_gpus}, and {nodes.gpus + joined} ranks are "
            f"there; say --ranks {elastic.min_gpus}, or lower it"
        )
        found.append(Mistake(said, "OutOfRange", "spec.elastic.minGPUs"))
    return found
