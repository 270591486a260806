"""The operator's side of worker/contract.py: one watcher for each agent, and directives sent once.

Invariant: a view tells when its report became old; it never invents one.  Agents call nobody, so
everything is asked from here, by long polls that an agent answers as soon as its report changes.
Source: worker/contract.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import aiohttp
from pydantic import ValidationError

from heddle_operator.controller.agent_answers import (
    misunderstanding,
    read_answer,
    refusal_in,
    report_in,
)
from heddle_operator.ports.pace import Pace
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.progress import not_finite_steps, progress_times, save_times
from heddle_operator.state.snapshot import AgentView, ObservedPod
from planner.background import Background
from planner.pauses import doubled_s
from worker.columns import compressed_directive
from worker.contract import (
    Directive,
    Halt,
    Look,
    Report,
)

LOG = logging.getLogger(__name__)
RETRY_S = (0.05, 1.0)  # first and longest pause after an agent did not answer
SENT_KEPT = 4096  # messages that are remembered, before those of which the pause has passed go
RESEND_S = 1.0  # a directive that was refused or got lost is sent again after so long
REPORT_PAUSE_S, REPORT_BURST = 0.1, 10  # of one pod: a change is several reports within tenths
READING_SHARE = 20  # a pod pauses so many times as long as it took to read its report
ANSWER_S = 2.5  # an agent's loop answers within milliseconds; longer means that it hangs
BEAT_LATE_S = 2.0  # ranks beat every second; one that is late is looked at more often
LATE_WAIT_S = 0.5


class Agents:
    """All agents of one job."""

    def __init__(
        self,
        token: str,
        trigger: Trigger,
        wait_s: float,
        on_report: Callable[[Report], None] = lambda _: None,
        peer_timeout_s: float = 10.0,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.views: dict[str, AgentView] = {}
        self._trigger = trigger
        # Two answers may get lost before an agent is taken for silent.
        self._wait_s = min(wait_s, peer_timeout_s / 4)
        self._answer_s = min(ANSWER_S, peer_timeout_s / 4)
        self._on_report = on_report
        self._left_s = left_s
        self._headers = {"Authorization": f"Bearer {token}"}
        self._watchers: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._sent: dict[tuple[str, int, str], float] = {}
        self._sending = Background()
        self._newest: tuple[Directive, dict[bool, bytes]] | None = None
        self._session: aiohttp.ClientSession | None = None

    def watch(self, pods: Iterable[ObservedPod]) -> None:
        """Watch exactly these pods: those that run and have an address."""
        wanted = {pod.name: pod.address for pod in pods if pod.phase == "running" and pod.address}
        for name, (address, task) in list(self._watchers.items()):
            if wanted.get(name) != address:
                task.cancel()
                del self._watchers[name]
                self.views.pop(name, None)
                self._sent = {key: at for key, at in self._sent.items() if key[0] != name}
        for name, address in wanted.items():
            if name not in self._watchers and address is not None:
                task = asyncio.create_task(self._watch(name, address), name=f"watch {name}")
                self._watchers[name] = (address, task)

    def send(self, pod: str, directive: Directive) -> None:
        """Send a directive in the background, unless this very one was sent just now."""
        key = (pod, directive.epoch, directive.phase)
        view = self.views.get(pod)
        by_column = view is not None and view.report is not None and view.report.reads_columns
        encoding = "gzip" if by_column else "identity"
        self._send(key, "directive", lambda: self._written(directive, by_column), encoding)

    def halt(self, pod: str, halt: Halt) -> None:
        """Tell an agent in the background that its ranks lost a peer, unless it was told just now.

        Args:
            pod: of the agent.
            halt: names the epoch whose world is broken.
        """
        self._send((pod, halt.epoch, "halt"), "halt", lambda: halt.model_dump_json().encode())

    def look(self, pod: str, look: Look) -> None:
        """Ask an agent in the background for checkpoints, unless it was asked just now.

        Args:
            pod: of the agent.
            look: names the epoch that is to start.
        """
        self._send(
            (pod, look.epoch, "look"), "checkpoints", lambda: look.model_dump_json().encode()
        )

    def save(self, pod: str) -> None:
        """Tell an agent in the background to save, unless it was told just now."""
        self._send((pod, 0, "save"), "save", _nothing)

    def suspend(self, pod: str) -> None:
        """Tell an agent in the background to suspend its ranks, unless it was told just now."""
        self._send((pod, 0, "suspend"), "suspend", _nothing)

    def end(self, pod: str) -> None:
        """Tell an agent in the background that the job has ended, unless it was told just now."""
        self._send((pod, 0, "end"), "end", _nothing)

    async def end_all(self) -> None:
        """Tell all agents that the job is gone; returns once they know, or do not answer."""
        for pod in self._watchers:
            self.end(pod)
        await self._sending.finish(self._answer_s)

    def _written(self, directive: Directive, by_column: bool) -> bytes:
        """The directive as it is sent; all pods of an epoch get the same one, written once."""
        if self._newest is None or self._newest[0] is not directive:
            self._newest = directive, {}
        written = self._newest[1]
        if by_column not in written:
            written[by_column] = (
                compressed_directive(directive.model_dump(mode="json"))
                if by_column
                else directive.model_dump_json().encode()
            )
        return written[by_column]

    def _send(
        self,
        key: tuple[str, int, str],
        resource: str,
        body: Callable[[], bytes],
        encoding: str = "identity",
    ) -> None:
        pod, now = key[0], time.monotonic()
        if pod not in self._watchers or now < self._sent.get(key, 0.0):
            return
        if len(self._sent) > SENT_KEPT:
            self._sent = {kept: until for kept, until in self._sent.items() if until > now}
        self._sent[key] = now + RESEND_S
        url = f"http://{self._watchers[pod][0]}/v1/{resource}"
        sent = self._put(pod, url, body(), encoding)
        self._sending.start(sent, f"{resource} to {pod}")

    async def close(self) -> None:
        """Stop all watchers and wait for them."""
        tasks = [task for _, task in self._watchers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sending.close()
        self._watchers.clear()
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._allowed_s, sock_connect=self._answer_s)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=timeout,
                connector=connector,
                auto_decompress=False,  # few bytes could become many
            )
        return self._session

    @property
    def _allowed_s(self) -> float:
        return self._wait_s + self._answer_s

    async def _watch(self, name: str, address: str) -> None:
        """Follow an agent until cancelled; a defect of ours ends no watch, and is logged once."""
        said = ""
        while True:
            try:
                await self._follow(name, address)
            except Exception as error:
                if str(error) != said:
                    LOG.exception("agent of %s is followed anew", name)
                said = str(error)
                self._mark_unreachable(name, error)
            await asyncio.sleep(RETRY_S[1])

    async def _follow(self, name: str, address: str) -> None:
        version, step, failures, wait_s = -1, 0, 0, self._wait_s
        pace = Pace(REPORT_PAUSE_S, REPORT_BURST)
        while True:
            began_s = math.inf
            try:
                text = await self._get(address, version, step, wait_s)
                began_s = time.thread_time()  # what others compute meanwhile counts for nothing
                report = report_in(text)
            except (aiohttp.ClientError, TimeoutError, ValidationError, OSError) as error:
                self._mark_unreachable(name, error)
                spent_s = max(0.0, time.thread_time() - began_s)
                failures += 1
                pause_s = doubled_s(RETRY_S[0], failures, RETRY_S[1])
                await asyncio.sleep(max(pause_s, READING_SHARE * spent_s))
                version = -1
                continue
            failures = 0
            is_late = any(rank.beat_age_s > BEAT_LATE_S for rank in report.ranks)
            wait_s = min(LATE_WAIT_S, self._wait_s) if is_late else self._wait_s
            self._take(name, report, is_late or report.version != version)
            version = report.version
            step = max([step, *(record.step for record in report.steps)])
            # An agent that does not hold its reports back, or sends long ones, has its share of
            # the loop that all jobs have in common, and no more.
            rest_s = READING_SHARE * (time.thread_time() - began_s)
            await asyncio.sleep(pace.wait_s(time.monotonic(), rest_s))

    async def _get(self, address: str, version: int, step: int, wait_s: float) -> bytes:
        # The last step is asked for again: after a loss it may be trained a second time.
        query = {"after": version, "wait_s": wait_s, "steps_from": max(0, step - 1)}
        url = f"http://{address}/v1/report"
        async with self._client().get(url, params=query, allow_redirects=False) as answer:
            if answer.status != 200:
                raise aiohttp.ClientResponseError(
                    answer.request_info, (), status=answer.status, message=str(answer.reason)
                )
            return await read_answer(answer)

    def _take(self, name: str, report: Report, is_new: bool) -> None:
        view, now = self.views.get(name), time.monotonic()
        was_lost = view is not None and view.unreachable_since_s is not None
        self.views[name] = AgentView(
            pod=name,
            report=report,
            unreachable_since_s=None,
            heard_s=now,
            progressed_s=progress_times(view, report, now),
            saves_heard=save_times(view, report, now),
            not_finite=not_finite_steps(view, report),
            refusal=view.refusal if view else "",
        )
        self._on_report(report)
        if is_new or was_lost:
            self._trigger.set()

    def _mark_unreachable(self, name: str, error: Exception) -> None:
        now = time.monotonic()
        view = self.views.get(name) or AgentView(
            pod=name, report=None, unreachable_since_s=None, heard_s=now
        )
        problem = misunderstanding(error)
        if view.unreachable_since_s is None or view.problem != problem:
            what = problem or f"does not answer: {error or type(error).__name__}"
            LOG.info("agent of %s %s", name, what)
            since_s = view.unreachable_since_s
            if since_s is None:
                # What failed proves no longer a silence than it was waited for: the operator
                # itself may have been held up since the last report.
                since_s = max(view.heard_s, now - self._allowed_s)
            self.views[name] = replace(view, unreachable_since_s=since_s, problem=problem)
            self._trigger.set()

    async def _put(self, pod: str, url: str, body: bytes, encoding: str) -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        limit_s = min(self._allowed_s, self._left_s())
        if limit_s <= 0:
            return  # another operator may decide by now
        try:
            async with (
                asyncio.timeout(limit_s),
                self._client().put(
                    url, data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                why = await refusal_in(answer) if answer.status >= 400 else ""
                if why:
                    LOG.warning("%s refused PUT %s: %s", pod, url, why)
                if not url.endswith("/directive"):
                    return
                # 409 is no refusal for good: the agent follows what it heard since.
                self._note_refusal(pod, why if answer.status == 400 else "")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            LOG.info("PUT %s of %s got lost: %s", url, pod, error or type(error).__name__)

    def _note_refusal(self, pod: str, refusal: str) -> None:
        view = self.views.get(pod)
        if view is not None and view.refusal != refusal:
            self.views[pod] = replace(view, refusal=refusal)
            self._trigger.set()


def _nothing() -> bytes:
    return b"{}"
