"""Nodes, pods and epoch records on one machine: a pod is an agent process with all that it starts.

Invariant: no process outlives `close`, and none outlives this process: agents end when the pipe to
their parent closes.  A killed node is dead like a machine without power: nothing of it says
goodbye.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heddle.local.processes import POD_MARK, RUN_MARK, kill_processes, processes_with
from heddle_operator.ports.cluster import ClusterAction
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    PruneEpoch,
    SealEpoch,
)
from heddle_operator.state.epoch_records import EpochRecords
from heddle_operator.state.plan_reply import ReferencedPlan
from heddle_operator.state.snapshot import Observed, ObservedNode, ObservedPod
from planner.background import Background
from planner.cluster.composition import Node
from worker.log_lines import Format

LOG = logging.getLogger(__name__)
TERMINATION_GRACE_S = 1.0


@dataclass(slots=True)
class _Pod:
    """A pod and its agent process, once that is spawned."""

    seen: ObservedPod
    process: asyncio.subprocess.Process | None = None
    watcher: asyncio.Task[None] | None = None


class LocalCluster:
    """The seam `Cluster` on this machine.

    Args:
        job: its name.
        run_id: value of the marker in the environment of every child.
        run_directory: for logs and sockets; it must exist.
        token_file: holds the job's bearer token.
        trigger: set on every change.
        emulates: ranks wait until their profiled time has passed.
        device: of the ranks: auto, cpu or cuda.
        agent_command: what starts an agent; its options are added.
        peer_timeout_s: silence of a rank after which its agent takes it for lost.
        peak_flops_s: of one rank of this machine; None: unknown.
        log_format: of the pods' logs.
        referenced: the plan that a job in mode Manual follows.
    """

    def __init__(
        self,
        job: str,
        run_id: str,
        run_directory: Path,
        token_file: Path,
        trigger: Trigger,
        *,
        emulates: bool = True,
        device: str = "cpu",
        agent_command: tuple[str, ...] = (sys.executable, "-m", "worker", "agent"),
        peer_timeout_s: float = 10.0,
        peak_flops_s: float | None = None,
        log_format: Format = "text",
        referenced: ReferencedPlan | None = None,
    ) -> None:
        self.run_id = run_id
        self.first_pod_s: float | None = None
        self._job = job
        self._directory = run_directory
        self._token_file = token_file
        self._trigger = trigger
        self._emulates, self._device = emulates, device
        self._agent_command = agent_command
        self._peer_timeout_s = peer_timeout_s
        self._peak_flops_s = peak_flops_s
        self._log_format = log_format
        self._referenced = referenced
        self._nodes: dict[str, ObservedNode] = {}
        self._pods: dict[str, _Pod] = {}
        self._records = EpochRecords()
        self._watching = Background()
        self._notices: list[asyncio.TimerHandle] = []

    @property
    def nodes(self) -> Mapping[str, ObservedNode]:
        """The nodes by name."""
        return self._nodes

    def join(self, node: Node, since_s: float | None = None) -> None:
        """A node joins, now or as if it had always been there."""
        self._nodes[node.name] = ObservedNode(
            name=node.name,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            joined_at_s=time.monotonic() if since_s is None else since_s,
            leaving_at_s=None,
            link_domain=node.link_domain,
            speed_factor=node.speed_factor,
            gpu_price=None if node.price is None else node.price / node.gpus,
        )
        self._trigger.set()

    def follow(self, referenced: ReferencedPlan) -> None:
        """A job in mode Manual follows this plan from now on."""
        self._referenced = referenced
        self._trigger.set()

    def drain(self, name: str, notice_s: float = math.inf) -> None:
        """A node gets its notice; it goes when the job has left it.

        Args:
            name: of the node.
            notice_s: then its power fails, whatever is on it; infinite: it waits, as `kubectl
                drain` does.
        """
        node = self._nodes[name]
        if node.leaving_at_s is None:
            self._nodes[name] = replace(node, leaving_at_s=time.monotonic() + notice_s)
            if notice_s < math.inf:
                loop = asyncio.get_running_loop()
                self._notices.append(loop.call_later(notice_s, self._end_notice, name))
        self._forget_empty_nodes()
        self._trigger.set()

    def kill(self, name: str) -> float:
        """Every process of a node dies at once; answers when, by the monotonic clock."""
        pods = [pod for pod in self._pods.values() if pod.seen.node == name]
        pids = tuple(
            pid
            for pod in pods
            for pid in processes_with(**{RUN_MARK: self.run_id, POD_MARK: pod.seen.name})
        )
        killed_s = time.monotonic()
        kill_processes(pids)
        del self._nodes[name]
        for pod in pods:
            del self._pods[pod.seen.name]
        self._trigger.set()
        return killed_s

    def _end_notice(self, name: str) -> None:
        """The time of a notice is over; a node that came back meanwhile is another one."""
        node = self._nodes.get(name)
        if node is not None and node.leaving_at_s is not None:
            self.kill(name)

    async def observe(self) -> Observed:
        """Nodes, pods and epoch records."""
        return Observed(
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)),
            pods=tuple(self._pods[name].seen for name in sorted(self._pods)),
            epochs=self._records.all,
            referenced=self._referenced,
        )

    async def apply(self, action: ClusterAction) -> None:
        """Do one thing; see `Cluster`."""
        match action:
            case CreatePod():
                await self._create(action)
            case DeletePod():
                await self._delete(action.name)
            case AdoptPlan() | SealEpoch() | CloseEpoch():
                self._records.write(action, time.monotonic())
            case PruneEpoch():
                self._records.prune(action)
        self._trigger.set()

    async def close(self) -> None:
        """End every process of the run and wait until all are gone."""
        for notice in self._notices:
            notice.cancel()
        for name in list(self._pods):
            await self._delete(name)
        await self._watching.finish(TERMINATION_GRACE_S + 1)
        kill_processes(processes_with(**{RUN_MARK: self.run_id}))
        await self._watching.finish(1)

    async def _create(self, action: CreatePod) -> None:
        if action.name in self._pods or action.node not in self._nodes:
            return
        now = time.monotonic()
        if self.first_pod_s is None:
            self.first_pod_s = now
        seen = ObservedPod(
            name=action.name,
            node=action.node,
            ordinal=action.ordinal,
            gpus=action.gpus,
            phase="pending",
            created_s=now,
        )
        pod = _Pod(seen)
        self._pods[action.name] = pod
        pod.process = await self._spawn(action)
        pod.watcher = self._watching.start(self._watch(pod), f"pod {action.name}")

    async def _spawn(self, action: CreatePod) -> asyncio.subprocess.Process:
        command = [
            *self._agent_command,
            *("--job", self._job, "--pod", action.name, "--node", action.node),
            *("--gpus", str(action.gpus), "--host", "127.0.0.1", "--port", "0"),
            *("--token-file", str(self._token_file)),
            *("--peer-timeout-s", f"{self._peer_timeout_s:g}"),
            *("--log-format", self._log_format),
            *("--device", self._device),
            *("--exit-with-parent", "--ignore-sigterm"),
        ]
        if self._emulates:
            command.append("--emulate")
        if self._peak_flops_s is not None:
            command += ["--peak-flops-s", repr(self._peak_flops_s)]
        environment = {**os.environ, RUN_MARK: self.run_id, POD_MARK: action.name}
        with (self._directory / f"{action.name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    async def _watch(self, pod: _Pod) -> None:
        """From the agent's first line to its end."""
        process = pod.process
        assert process is not None
        assert process.stdout is not None
        name = pod.seen.name
        line = await process.stdout.readline()
        try:
            port = int(json.loads(line)["port"])
        except (ValueError, KeyError, TypeError):
            LOG.debug("pod %s said no port: %r", name, line)
        else:
            pod.seen = replace(pod.seen, phase="running", address=f"127.0.0.1:{port}")
            self._trigger.set()
        while await process.stdout.read(4096):
            continue
        code = await process.wait()
        LOG.info("pod %s ended with %s", name, code)
        if self._pods.get(name) is pod:
            if pod.seen.deleting:
                del self._pods[name]
            else:
                pod.seen = replace(pod.seen, phase="ended", address=None)
        self._forget_empty_nodes()
        self._trigger.set()

    async def _delete(self, name: str) -> None:
        pod = self._pods.get(name)
        if pod is None or pod.seen.deleting:
            return
        if pod.seen.phase == "ended" or pod.process is None:
            del self._pods[name]
            self._forget_empty_nodes()
            return
        pod.seen = replace(pod.seen, deleting=True)
        assert pod.process.stdin is not None
        pod.process.stdin.close()
        self._watching.start(self._end(pod), f"end {name}")

    async def _end(self, pod: _Pod) -> None:
        """SIGKILL for everything of a pod that is still there after the grace."""
        assert pod.watcher is not None
        await asyncio.wait({pod.watcher}, timeout=TERMINATION_GRACE_S)
        marks = {RUN_MARK: self.run_id, POD_MARK: pod.seen.name}
        if self._pods.get(pod.seen.name) in (pod, None):
            kill_processes(processes_with(**marks))

    def _forget_empty_nodes(self) -> None:
        used = {pod.seen.node for pod in self._pods.values()}
        for name, node in list(self._nodes.items()):
            if node.leaving_at_s is not None and name not in used:
                del self._nodes[name]
