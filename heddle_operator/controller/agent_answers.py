"""Answers of agents, read with care: whoever owns a pod decides what it answers.

Invariant: an answer costs no more memory than a report of an agent of ours, and its sentences are
no longer than a record or a status of a job can hold.
Source: worker/contract.py.
"""

from __future__ import annotations

from typing import Annotated

import aiohttp
from pydantic import Field, ValidationError

from worker.contract import (
    EXITS_KEPT,
    RECORDS_KEPT,
    SAVES_KEPT,
    EvaluationRecord,
    RankExit,
    RankReport,
    Refusal,
    Report,
    SaveRecord,
    StepRecord,
    SwitchRecord,
)

_SAME_IMAGE = "give workers and operator the same image"
ANSWER_MAX_BYTES = 6 << 20  # of any answer; a report with all that an agent keeps has 5 MiB
RANKS_MOST = 64  # of a pod, one for each GPU; machines have 16 at most
WORDS_MOST = 1024  # letters of a sentence of an agent: it goes into logs, records and statuses


class _Heard(Report):
    """A report, no longer than one that an agent of ours sends: pods belong to others."""

    ranks: Annotated[tuple[RankReport, ...], Field(max_length=RANKS_MOST)] = ()
    exits: Annotated[tuple[RankExit, ...], Field(max_length=EXITS_KEPT)] = ()
    steps: Annotated[tuple[StepRecord, ...], Field(max_length=RECORDS_KEPT)] = ()
    switches: Annotated[tuple[SwitchRecord, ...], Field(max_length=RECORDS_KEPT)] = ()
    evaluations: Annotated[tuple[EvaluationRecord, ...], Field(max_length=RECORDS_KEPT)] = ()
    saves: Annotated[tuple[SaveRecord, ...], Field(max_length=SAVES_KEPT)] = ()


def report_in(text: bytes) -> Report:
    """The report of an agent, with short sentences.

    Raises:
        ValidationError: it is none, or longer than one of ours.
    """
    return _with_short_words(_Heard.model_validate_json(text))


def _with_short_words(report: Report) -> Report:
    """The report, whose sentences are no longer than a record or a status of a job can hold."""
    ranks = tuple(
        rank.model_copy(
            update={"error": rank.error and rank.error[:WORDS_MOST], "part": rank.part[:WORDS_MOST]}
        )
        if len(rank.error or "") > WORDS_MOST or len(rank.part) > WORDS_MOST
        else rank
        for rank in report.ranks
    )
    exits = tuple(
        left.model_copy(update={"error": left.error[:WORDS_MOST]})
        if left.error is not None and len(left.error) > WORDS_MOST
        else left
        for left in report.exits
    )
    return report.model_copy(update={"ranks": ranks, "exits": exits})


def misunderstanding(error: Exception) -> str:
    """Fault of an agent whose answer this operator does not understand; "" if that is not it."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "report"
        return f"its agent is of another version: {where}: {first['msg']}; {_SAME_IMAGE}"
    if isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403):
        return f"its agent answers HTTP {error.status}: it was started with another token"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its agent answers HTTP {error.status} to GET /v1/report; {_SAME_IMAGE}"
    return ""


async def read_answer(answer: aiohttp.ClientResponse) -> bytes:
    """The whole of an answer: whoever owns a pod decides how long it is.

    Raises:
        aiohttp.ClientPayloadError: it is longer than any that is understood.
    """
    read = bytearray()
    async for chunk in answer.content.iter_any():
        read += chunk
        if len(read) > ANSWER_MAX_BYTES:
            raise aiohttp.ClientPayloadError(
                f"its answer is longer than {ANSWER_MAX_BYTES >> 20} MiB"
            )
    return bytes(read)


async def refusal_in(answer: aiohttp.ClientResponse) -> str:
    """Why an agent refuses a request, in its words."""
    try:
        return Refusal.model_validate_json(await read_answer(answer)).error[:WORDS_MOST]
    except ValidationError:
        return f"HTTP {answer.status}"
