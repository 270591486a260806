"""heddle_operator/state/settings.py: a file of settings is read whole, or refused in a sentence."""

from __future__ import annotations

import pytest

from heddle_operator.apis.errors import InvalidSettings
from heddle_operator.controller.agents import ANSWER_S
from heddle_operator.state.settings import Settings, settings_of, settings_schema
from tests.refusals import command_refused, refused


def test_every_key_reaches_its_setting():
    given = {
        key: field["minimum"] + 1 if "minimum" in field else 7.5
        for key, field in settings_schema()["properties"].items()
    }
    given |= {"prices": {"h100": 2.5}, "profiles": "/profiles"}
    found = settings_of(given, "f")
    assert found.model_dump(by_alias=True) == given
    defaults = Settings().model_dump()
    assert len(defaults) == len(given)


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_file_leaves_the_defaults(empty):
    assert settings_of(empty, "f") == Settings()


@pytest.mark.parametrize(
    ("data", "mistake"),
    [
        ([], ("Malformed", None)),
        ({"killSecond": 2}, ("Unknown", "killSecond")),
        ({"kill_s": 2}, ("Unknown", "kill_s")),
        ({"killSeconds": "soon"}, ("Malformed", "killSeconds")),
        ({"killSeconds": True}, ("Malformed", "killSeconds")),
        ({"killSeconds": 0}, ("OutOfRange", "killSeconds")),
        ({"lateSeconds": float("inf")}, ("OutOfRange", "lateSeconds")),
        ({"prices": {"h100": -1}}, ("OutOfRange", "prices.h100")),
        ({"prices": [2]}, ("Malformed", "prices")),
        ({"profiles": 2}, ("Malformed", "profiles")),
        ({"epochsKept": 1.5}, ("Malformed", "epochsKept")),
        ({"epochsKept": 2000}, ("OutOfRange", "epochsKept")),
        ({"peerTimeoutSeconds": 5}, ("Unsupported", "peerTimeoutSeconds")),
    ],
)
def test_a_mistake_is_one_sentence_with_key_value_and_range(data, mistake):
    with refused(InvalidSettings, *mistake):
        settings_of(data, "f")


@pytest.mark.parametrize(
    ("text", "said"),
    [("killSeconds: -1\n", "killSeconds is -1"), ("profiles: /none\n", "folder of profiles /none")],
)
def test_the_operator_ends_with_2_before_it_looks_for_a_cluster(tmp_path, text, said):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert said in command_refused("operator", "run", "--settings", file)


def test_an_answer_may_get_lost_before_an_agent_is_taken_for_silent():
    settings = Settings()
    a_try_s = min(settings.report_wait_s, settings.peer_timeout_s / 4) + ANSWER_S
    assert 2 * a_try_s <= settings.peer_timeout_s
