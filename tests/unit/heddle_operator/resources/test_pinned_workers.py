"""What a job started with is read back from its record; what else holds is of today."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.resources.pinned_workers import workers_of_json, workers_to_json
from heddle_operator.resources.pods import WorkerDefaults

TEMPLATE = {"spec": {"nodeSelector": {"zone": "a"}}}
BASE = {"spec": {"containers": [{"name": "worker", "command": ["heddle"]}]}}
OLD = WorkerDefaults("heddle:1", TEMPLATE, "text", BASE, frozenset({"hostIPC"}))
NEW = WorkerDefaults("heddle:2", {}, "json", {}, frozenset())


def test_image_and_templates_are_pinned_and_nothing_that_is_allowed():
    found = workers_of_json(workers_to_json(OLD), NEW)
    assert (found.image, found.template, found.base) == (OLD.image, OLD.template, OLD.base)
    assert (found.log_format, found.allow) == ("json", frozenset())


def test_what_no_author_may_write_holds_only_while_the_administrator_says_it():
    rooted = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    pinned = workers_to_json(replace(OLD, template=rooted))
    found = workers_of_json(pinned, NEW)
    assert (found.image, found.template, found.base) == (OLD.image, NEW.template, NEW.base)
    assert workers_of_json(pinned, replace(NEW, template=rooted)).template == rooted
    assert workers_of_json(pinned, replace(NEW, allow={"hostPath"})).template == rooted


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"image": 1, "template": {}, "base": {}}',
             '{"image": "x", "template": {}, "base": []}'],
)  # fmt: skip
def test_what_is_no_pin_is_an_error_of_reading(text):
    with pytest.raises((LookupError, TypeError, ValueError)):
        workers_of_json(text, NEW)
