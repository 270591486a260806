"""heddle_operator/state/settings.py: a file of settings is read whole, or refused in a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heddle_operator.apis.errors import InvalidSettings
from heddle_operator.controller.agents import ANSWER_S
from heddle_operator.state.settings import Settings, settings_of, settings_schema


def test_every_key_reaches_its_setting():
    given = {
        key: field["minimum"] + 1 if "minimum" in field else 7.5
        for key, field in settings_schema()["properties"].items()
    }
    given["prices"] = {"h100": 2.5}
    found = settings_of(given, "f")
    assert found.model_dump(by_alias=True) == given
    defaults = Settings().model_dump()
    assert len(defaults) == len(given)


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_file_leaves_the_defaults(empty):
    assert settings_of(empty, "f") == Settings()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "f holds a list"),
        ({"killSecond": 2}, "no setting 'killSecond' (did you mean 'killSeconds'?)"),
        ({"kill_s": 2}, "no setting 'kill_s'"),
        ({"killSeconds": "soon"}, "killSeconds is 'soon'; it must be a number"),
        ({"killSeconds": True}, "killSeconds is True"),
        ({"killSeconds": 0}, "killSeconds is 0; it must be a number above 0 and at most 86,400"),
        ({"lateSeconds": float("inf")}, "lateSeconds is inf"),
        ({"prices": {"h100": -1}}, "prices.h100 is -1; it must be a number of at least 0"),
        ({"prices": [2]}, "prices is [2]; it must be a mapping"),
        ({"epochsKept": 1.5}, "epochsKept is 1.5; it must be a whole number"),
        ({"epochsKept": 2000}, "it must be a whole number of at least 0 and at most 1,000"),
        ({"peerTimeoutSeconds": 5}, "set by each job; write spec.elastic.peerTimeoutSeconds"),
    ],
)
def test_a_mistake_is_one_sentence_with_key_value_and_range(data, words):
    with pytest.raises(InvalidSettings) as caught:
        settings_of(data, "f")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_operator_ends_with_2_before_it_looks_for_a_cluster(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("killSeconds: -1\n")
    command = [sys.executable, "-m", "heddle", "operator", "run", "--settings", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "killSeconds is -1" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_may_get_lost_before_an_agent_is_taken_for_silent():
    settings = Settings()
    a_try_s = min(settings.report_wait_s, settings.peer_timeout_s / 4) + ANSWER_S
    assert 2 * a_try_s <= settings.peer_timeout_s
