"""The real operator, killed by itself with SIGKILL at one exact moment: an entry for tests.

`python -m tests.e2e.kubernetes.dying_operator run ...`, with the moment in the variable
HEDDLE_TEST_DIES.  Nothing of the operator is replaced: a function of it is called as ever, and the
process ends right before or right after.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from heddle_operator.command import operator
from heddle_operator.controller.agents import Agents
from heddle_operator.kube.client import KubeApi
from planner.program import run

VARIABLE = "HEDDLE_TEST_DIES"
MOMENTS = ("ConfigMap created", "pods created", "joiners ready", "switch sent", "votes in")
Call: TypeAlias = Callable[..., Awaitable[Any]]


def die() -> None:
    """As by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def after(call: Call, is_moment: Callable[..., bool]) -> Call:
    """The call, and death once one of that kind has succeeded."""

    async def dying(*arguments: Any, **options: Any) -> Any:
        answer = await call(*arguments, **options)
        if is_moment(*arguments):
            die()
        return answer

    return dying


def before(call: Call, is_moment: Callable[..., bool]) -> Call:
    """The call, and death instead of the first one of that kind."""

    async def dying(*arguments: Any, **options: Any) -> Any:
        if is_moment(*arguments):
            die()
        return await call(*arguments, **options)

    return dying


def _creates(kind: str) -> Callable[..., bool]:
    return lambda _, path, body: path.endswith(f"/{kind}")


def _writes(outcome: str) -> Callable[..., bool]:
    """Whether an epoch record is written with this outcome: open is its seal."""
    return lambda _, path, body: "/configmaps/" in path and body["data"]["outcome"] == outcome


def _is_switch(_: Agents, pod: str, url: str, body: bytes, encoding: str) -> bool:
    text = gzip.decompress(body) if encoding == "gzip" else body
    return json.loads(text).get("phase") == "switch"


def arm(moment: str) -> None:
    """Let this process die at the moment."""
    match moment:
        case "ConfigMap created":
            KubeApi.create = after(KubeApi.create, _creates("configmaps"))
        case "pods created":
            KubeApi.create = after(KubeApi.create, _creates("pods"))
        case "joiners ready":
            KubeApi.replace = before(KubeApi.replace, _writes("open"))
        case "switch sent":
            Agents._put = after(Agents._put, _is_switch)
        case "votes in":
            KubeApi.replace = before(KubeApi.replace, _writes("live"))
        case _:
            raise SystemExit(f"{VARIABLE} holds {moment!r}; known are {', '.join(MOMENTS)}")


if __name__ == "__main__":
    arm(os.environ[VARIABLE])
    run(operator)
