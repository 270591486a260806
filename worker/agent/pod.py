"""Runs an agent with its HTTP server until the pod ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack

from worker.agent.agent import Agent, AgentSettings
from worker.agent.fork_server_start import ForkServer
from worker.agent.http import application
from worker.errors import WorkerError
from worker.http_limits import serving


async def run_pod(
    settings: AgentSettings, port: int, exit_with_parent: bool, fork_server: ForkServer
) -> int:
    """Serve the contract on `settings.host`; print `{"port": ...}` when listening.

    Returns:
        The exit status.

    Raises:
        WorkerError: it cannot listen there.
    """
    agent = Agent(settings, fork_server)
    async with AsyncExitStack() as stack:
        try:
            served = serving(application(agent), settings.host, port)
            _, listening = await stack.enter_async_context(served)
        except OSError as error:
            raise WorkerError(
                f"the agent cannot listen on {settings.host}:{port}: {error.strerror}; "
                "give an address of this machine, and a free port or 0",
                field="port",
                code="Unwritable",
            ) from None
        sys.stdout.write(json.dumps({"port": listening, "host": settings.host}) + "\n")
        sys.stdout.flush()
        _end_with(agent, exit_with_parent)
        await agent.start()
        try:
            await agent.stopping.wait()
        finally:
            await agent.close()
    return agent.exit_code


def _end_with(agent: Agent, exit_with_parent: bool) -> None:
    """Bind the signals of a pod, and, if asked, the end of standard input, to the agent's life."""
    loop = asyncio.get_running_loop()
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGTERM, agent.notice)
    loop.add_signal_handler(signal.SIGINT, agent.stop)
    if exit_with_parent:

        def parent_gone() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                agent.stop()

        try:
            loop.add_reader(0, parent_gone)
        except OSError:  # a file, or nothing: it is at its end, and nobody can wait for that
            agent.stop()
