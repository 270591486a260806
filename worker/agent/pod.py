"""Runs an agent with its HTTP server until the pod ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from aiohttp import web

from worker.agent.agent import Agent, AgentSettings
from worker.agent.http import application
from worker.errors import WorkerError


async def run_pod(settings: AgentSettings, port: int, exit_with_parent: bool) -> int:
    """Serve the contract on `settings.host`; print `{"port": ...}` when listening.

    Returns:
        The exit status.

    Raises:
        WorkerError: it cannot listen there.
    """
    agent = Agent(settings)
    runner = web.AppRunner(application(agent), shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, settings.host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise WorkerError(
            f"the agent cannot listen on {settings.host}:{port}: {error.strerror}; "
            "--host is an address of this machine, --port a free one or 0"
        ) from None
    listening = runner.addresses[0][1]
    sys.stdout.write(json.dumps({"port": listening, "host": settings.host}) + "\n")
    sys.stdout.flush()
    _end_with(agent, exit_with_parent)
    await agent.start()
    try:
        await agent.stopping.wait()
    finally:
        await agent.close()
        await runner.cleanup()
    return agent.exit_code


def _end_with(agent: Agent, exit_with_parent: bool) -> None:
    """Bind the signals of a pod, and, if asked, the end of standard input, to the agent's life."""
    loop = asyncio.get_running_loop()
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
