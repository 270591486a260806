"""What a job started with is read back from its record if an operator wrote it there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.resources.pinned_workers import workers_of_json, workers_to_json
from heddle_operator.resources.pods import WorkerDefaults

# What no author of a job may write, and an administrator may.
ROOTED = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
BASE = {"spec": {"containers": [{"name": "worker", "command": ["heddle"]}]}}
OLD = WorkerDefaults(
    image="heddle:1",
    template=ROOTED,
    log_format="text",
    base=BASE,
    allow=frozenset({"hostIPC"}),
    per_gpu={"cpu": "4"},
    shm_per_gpu="1Gi",
    host_ports="9000-9001",
)
NEW = WorkerDefaults(image="heddle:2", template={}, log_format="json", base={}, allow=frozenset())
PINNED = workers_to_json(OLD, "secret")


def test_all_that_the_administrator_gives_is_pinned_but_not_what_authors_may_do():
    found = workers_of_json(PINNED, NEW, "secret")
    assert found == replace(OLD, log_format=NEW.log_format, allow=NEW.allow)


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "{}", "[]", '{"pinned": {}}', '{"pinned": [], "signature": ""}',
        '{"pinned": {"image": "evil:1"}, "signature": null}',
        PINNED.replace("heddle:1", "evil:1"),
        workers_to_json(OLD, "another job's secret"),
    ],
)  # fmt: skip
def test_what_no_operator_of_the_job_wrote_is_an_error_of_reading(text):
    with pytest.raises((LookupError, TypeError, ValueError)):
        workers_of_json(text, NEW, "secret")
