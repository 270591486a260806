"""Real agents as processes, driven by hand-written directives: the operator's part, reduced to what
a test says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.contract import (
    Directive,
    Member,
    RankReport,
    Report,
    Restore,
    Resume,
    TrainingSpec,
)

TOKEN = "secret"
JOB = "tiny"
WAIT_S = 60.0


@dataclass
class Pod:
    """One agent process."""

    name: str
    process: subprocess.Popen[str]
    url: str
    known: dict[str, object] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: bytes | None = None, token: str = TOKEN
    ) -> tuple[int, dict]:
        request = urllib.request.Request(self.url + path, body, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def put(self, directive: Directive) -> tuple[int, dict]:
        return self.request("PUT", "/v1/directive", directive.model_dump_json().encode())

    def report(self, after: int = 0, wait_s: float = 0.0) -> Report:
        status, body = self.request("GET", f"/v1/report?after={after}&wait_s={wait_s}")
        assert status == 200, body
        return Report.model_validate(body)

    def wait(self, claim: Callable[[Report], bool], timeout_s: float = WAIT_S) -> Report:
        """The first report of which the claim holds."""
        deadline, version = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline:
            report = self.report(version, 0.1)
            if claim(report):
                return report
            version = report.version
        raise AssertionError(
            f"{self.name} never got there; last report: {report.model_dump_json(exclude={'steps'})}"
        )


class Pods:
    """Agents by name; `close` kills all of them and what they started."""

    def __init__(
        self,
        folder: Path,
        emulate: bool = False,
        rank_entry: str | None = None,
        environment: dict | None = None,
        options: tuple[str, ...] = (),
    ):
        self.folder, self.emulate, self.rank_entry = folder, emulate, rank_entry
        self.options = options  # of the agents' command
        ours = str(Path(__file__).parents[2])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")])),
            **(environment or {}),
        }
        self.pods: dict[str, Pod] = {}
        (folder / "token").write_text(TOKEN)

    def start(self, *names: str, gpus: int = 4) -> None:
        """Start agents and wait until all are ready."""
        for name in names:
            command = [
                sys.executable,
                "-m",
                "worker",
                "agent",
                "--job",
                JOB,
                "--pod",
                f"{JOB}-{name}-0",
                "--node",
                name,
            ]
            command += [
                "--gpus",
                str(gpus),
                "--token-file",
                str(self.folder / "token"),
                "--exit-with-parent",
            ]
            command += [*self.options, *(["--emulate"] if self.emulate else [])]
            command += ["--rank-entry", self.rank_entry] if self.rank_entry else []
            log = (self.folder / f"{name}.log").open("ab")
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (self.folder / f"{name}.log").read_text()
            self.pods[name] = Pod(name, process, f"http://127.0.0.1:{json.loads(line)['port']}")
        for name in names:
            self.pods[name].wait(lambda report: report.ready)

    def kill(self, name: str) -> None:
        """SIGKILL every process of a pod at once."""
        pod = self.pods.pop(name)
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself, all of it
            os.killpg(pod.process.pid, signal.SIGKILL)
        pod.process.wait()

    def close(self) -> None:
        for name in list(self.pods):
            self.kill(name)

    def members(
        self, plan: Plan, holds: dict[tuple[str, int], int] | None = None
    ) -> tuple[Member, ...]:
        """Members of a change to `plan`; `holds` says which (node, gpu) hold the layout of which
        epoch."""
        held = dict(holds or {})
        found = [
            Member(pod=f"{JOB}-{s.node}-0", slot=s.gpu, node=s.node, gpu=s.gpu, rank=s.rank,
                   holds=held.pop((s.node, s.gpu), None))
            for s in RankMap.of(plan).seats
        ]  # fmt: skip
        for (node, gpu), epoch in sorted(held.items()):
            found.append(
                Member(pod=f"{JOB}-{node}-0", slot=gpu, node=node, gpu=gpu, rank=None, holds=epoch)
            )
        return tuple(found)

    def directive(
        self,
        epoch: int,
        plan: Plan,
        spec: TrainingSpec,
        store: str,
        *,
        reason: str = "join",
        phase: str = "prepare",
        holds: dict[tuple[str, int], int] | None = None,
        layouts: dict[int, Plan] | None = None,
        resume: Resume | None = None,
        restore: Restore | None = None,
    ) -> Directive:
        address = self.pods[store].report().store
        assert address
        return Directive(
            job=JOB,
            epoch=epoch,
            phase=phase,
            reason=reason,
            plan=plan.to_json(),
            plan_digest=plan.digest,
            layouts={e: p.to_json() for e, p in (layouts or {}).items()},
            members=self.members(plan, holds),
            store=address,
            training=spec,
            resume=resume,
            restore=restore,
        )

    def send(self, directive: Directive, names: Iterable[str] | None = None) -> None:
        for name in names if names is not None else {m.node for m in directive.members}:
            if name in self.pods:
                status, body = self.pods[name].put(directive)
                assert status == 200, body

    def ranks(self, node: str) -> dict[int, RankReport]:
        return {rank.slot: rank for rank in self.pods[node].report().ranks}

    def change(self, directive: Directive) -> None:
        """Prepare, wait for all, switch, wait until the new epoch trains."""
        self.send(directive)
        self.wait_members(
            directive, lambda rank: rank.pending_epoch == directive.epoch, lambda member: True
        )
        self.send(directive.model_copy(update={"phase": "switch"}))
        self.wait_members(
            directive,
            lambda rank: rank.epoch == directive.epoch and rank.phase in ("training", "done"),
            lambda member: member.rank is not None,
        )

    def wait_members(
        self,
        directive: Directive,
        claim: Callable[[RankReport], bool],
        which: Callable[[Member], bool],
    ) -> None:
        for node in sorted({m.node for m in directive.members}):
            slots = {m.slot for m in directive.members if m.node == node and which(m)}
            if slots and node in self.pods:
                self.pods[node].wait(
                    lambda report, slots=slots: (
                        slots <= {rank.slot for rank in report.ranks if claim(rank)}
                    )
                )


def template(
    text: str, micro_batch: int, *micro_batches: int, gpu_type: str = "demo-fast"
) -> FilledTemplate:
    """`2x4+1x2`: a stage of TP 2 with 4 blocks, then a stage of TP 1 with 2 blocks."""
    stages = tuple(
        Stage(gpu_type=gpu_type, tp=int(p.split("x")[0]), layers=int(p.split("x")[1]))
        for p in text.split("+")
    )
    return FilledTemplate(stages, micro_batch, micro_batches)


def place(templates: tuple[FilledTemplate, ...], gpus: list[tuple[str, int]]) -> Plan:
    """Place stages on (node, gpu) in the order given."""
    free, placement = iter(gpus), []
    for t, filled in enumerate(templates):
        for r in range(filled.replicas):
            for s, stage in enumerate(filled.stages):
                spots = [next(free) for _ in range(stage.tp)]
                assert len({node for node, _ in spots}) == 1
                placement.append(PlacedStage(t, r, s, spots[0][0], tuple(gpu for _, gpu in spots)))
    return Plan(templates, tuple(placement))
