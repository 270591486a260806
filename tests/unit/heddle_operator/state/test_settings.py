"""Defaults that depend on each other agree."""

from __future__ import annotations

from heddle_operator.controller.agents import ANSWER_S
from heddle_operator.state.settings import Settings
from worker.agent.agent import AgentSettings


def test_a_silent_node_is_known_to_be_lost_when_the_ranks_that_wait_for_it_halt():
    settings = Settings()
    ranks = AgentSettings("job", "pod", "node", 1, "127.0.0.1", "token")
    noticed_s = settings.report_wait_s + ANSWER_S + settings.unreachable_grace_s
    assert noticed_s <= ranks.timeout_s
