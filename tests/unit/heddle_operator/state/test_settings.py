"""Defaults that depend on each other agree."""

from __future__ import annotations

from heddle_operator.controller.agents import ANSWER_S
from heddle_operator.state.settings import Settings


def test_an_answer_may_get_lost_before_an_agent_is_taken_for_silent():
    settings = Settings()
    a_try_s = min(settings.report_wait_s, settings.peer_timeout_s / 4) + ANSWER_S
    assert 2 * a_try_s <= settings.peer_timeout_s
