"""`heddle status` and `heddle logs`, against an API server in memory."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from heddle.cli.options import job_named
from heddle.commands import status
from heddle.commands.cost import cost
from heddle.main import heddle
from heddle_operator.resources.epoch_config_map import record_to_body
from heddle_operator.state.epoch_record import EpochRecord
from planner.cluster.composition import Composition, Node
from planner.errors import HeddleError
from planner.model.workload import Workload
from planner.plans.plan import Plan
from tests.fakes.api_server import a_served_api_server
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
PLAN = fake_plan(NODES, a_job().workload)
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/{}/heddlejobs/{}"
PODS = "/api/v1/namespaces/ml/pods/{}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    with a_served_api_server() as served:
        monkeypatch.setenv("KUBECONFIG", str(served.kubeconfig(tmp_path, namespace="ml")))
        yield served


def put(server, path, body):
    metadata = {"name": path.rsplit("/", 1)[1], "uid": "u", **body.pop("metadata", {})}
    server.objects[path] = {"metadata": {"resourceVersion": "1", **metadata}, **body}


def put_job(server, name="tiny", namespace="ml", **status):
    spec = a_job().model_dump(by_alias=True, mode="json", exclude_none=True)["spec"]
    body = {"apiVersion": "heddle.dev/v1alpha1", "kind": "HeddleJob", "spec": spec}
    metadata = {"metadata": {"namespace": namespace}, "status": {"phase": "Running", **status}}
    put(server, JOBS.format(namespace, name), {**body, **metadata})


def put_pod(server, name, log, container="worker", **status):
    put(server, PODS.format(name), {"metadata": {"labels": {"heddle.dev/job": "tiny"}},
                                    "status": status})  # fmt: skip
    if log is not None:
        server.logs[name, container] = log


def said(*arguments):
    done = CliRunner().invoke(heddle, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def refused(*arguments):
    with pytest.raises(HeddleError) as error:
        said(*arguments)
    return str(error.value)


def test_the_namespace_is_that_of_the_context_unless_another_one_is_named(server):
    put_job(server, "tiny", "ml")
    put_job(server, "other", "default")
    assert "tiny" in said("status")
    assert "other" not in said("status")
    assert "other" in said("status", "-n", "default")
    assert {"tiny", "other"} <= set(said("status", "-A").split())
    assert said("status", "default/other").startswith("default/other: Running")
    assert said("status", "other", "-n", "default") == said("status", "default/other")


@pytest.mark.parametrize(
    "arguments", [("/tiny",), ("a/b/tiny",), ("default/",), ("ml/tiny", "-n", "default")]
)
def test_a_job_has_one_name_and_one_namespace(arguments):
    with pytest.raises(click.UsageError):
        job_named(arguments[0], arguments[2] if len(arguments) > 1 else None)


def test_a_job_is_shown_whole_and_as_json(server):
    put_job(server)
    assert said("status", "tiny").startswith("ml/tiny: Running")
    assert json.loads(said("status", "tiny", "-o", "json"))["status"]["phase"] == "Running"
    assert len(json.loads(said("status", "--output", "json"))["items"]) == 1


def put_running_plan(server, **data):
    """A job in epoch 3, whose record has these entries too."""
    put_job(server, epoch=3)
    record = EpochRecord(epoch=3, plan=PLAN, reason="join", composition=NODES, adopted_s=0.0)
    body = record_to_body(a_job(), record, 0.0)
    body["data"] |= data
    put(server, f"/api/v1/namespaces/ml/configmaps/{body['metadata']['name']}", body)


def test_the_plan_that_is_shown_is_the_one_that_trains(server):
    put_running_plan(server)
    shown = json.loads(said("status", "tiny", "--plan"))
    assert Plan.from_json(shown) == PLAN
    assert shown["digest"] == PLAN.digest
    assert Workload.from_json(shown["workload"]) == a_job().workload


def test_heddle_cost_reads_the_plan_that_is_shown(server):
    put_running_plan(server)
    done = CliRunner().invoke(cost, ["-"], input=said("status", "tiny", "--plan"))
    assert done.exit_code == 0, done.output


def test_a_plan_in_a_record_of_a_newer_operator_is_refused(server):
    put_running_plan(server, format="99")
    assert "has format 99, and this" in refused("status", "tiny", "--plan")


def test_without_jobs_it_says_where_it_looked(server):
    assert said("status") == "There are no HeddleJobs here; -A looks in all namespaces.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "none"), "there is no HeddleJob none in namespace ml; `heddle status -A`"),
        (("logs", "none", "-n", "x"), "there is no HeddleJob none in namespace x"),
        (("status", "tiny", "--plan"), "job tiny has no plan yet; `heddle status tiny` says why"),
        (("logs", "tiny"), "job tiny has no pods now; `heddle status tiny` says why"),
    ],
)
def test_what_is_not_there_is_one_sentence(server, arguments, words):
    put_job(server)
    assert words in refused(*arguments)


@pytest.mark.parametrize("arguments", [("status", "--plan"), ("status", "tiny", "-A")])
def test_options_that_contradict_each_other_are_refused(server, arguments):
    done = CliRunner().invoke(heddle, arguments)
    assert done.exit_code == 2
    assert "Error: " in done.output


def test_a_cluster_without_the_resource_is_told_apart_from_a_missing_job(server):
    server.refuses["GET heddlejobs/tiny"] = (404, 'heddlejobs "tiny" not found')
    assert "the cluster knows no HeddleJobs; install the chart" in refused("status", "tiny")


def test_without_a_cluster_it_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert refused("status").startswith("no cluster to talk to: ")


def test_a_server_that_does_not_answer_is_named(tmp_path, monkeypatch):
    with a_served_api_server() as served:
        monkeypatch.setenv("KUBECONFIG", str(served.kubeconfig(tmp_path)))
    assert f"the API server http://127.0.0.1:{served.port} does not answer" in refused("status")


def test_logs_of_all_pods_are_shown_ended_ones_too_and_the_first_traceback_first(server):
    put_job(server)
    put_pod(server, "tiny-a-0", "T1 step 1\nT2 step 2\n", phase="Succeeded")
    put_pod(server, "tiny-b-0", "T1 step 1\nT9 Traceback (most recent call last):\n",
            phase="Failed")  # fmt: skip
    put_pod(server, "tiny-c-0", None, phase="Pending")
    assert said("logs", "tiny").splitlines() == [
        "tiny-b-0 | step 1",
        "tiny-b-0 | Traceback (most recent call last):",
        "tiny-a-0 | step 1",
        "tiny-a-0 | step 2",
        'tiny-c-0 | (no log: container "worker" is waiting to start)',
    ]


def test_of_a_pod_that_never_got_to_its_worker_the_log_of_what_failed_is_shown(server):
    put_job(server)
    ended = {"name": "data", "state": {"terminated": {"exitCode": 1}}}
    put_pod(server, "tiny-a-0", "T1 no text\n", "data", phase="Failed",
            initContainerStatuses=[ended])  # fmt: skip
    assert said("logs", "tiny") == "tiny-a-0/data | no text\n"


def test_logs_are_followed_with_pods_that_join_until_the_job_has_ended(server, monkeypatch):
    """Each look tells one more thing; the last one reads what was said before the end."""
    at = "2026-01-01T00:00:0{}.000000000Z {}\n".format
    put_job(server)
    put_pod(server, "tiny-a-0", at(1, "step 1"), phase="Running")
    looks = [
        lambda: put_pod(server, "tiny-b-0", None, phase="Pending"),
        lambda: put_pod(server, "tiny-b-0", at(2, "joined"), phase="Running"),
        lambda: (
            server.logs.update({("tiny-a-0", "worker"): at(1, "step 1") + at(3, "step 2")}),
            put_job(server, phase="Complete"),
        ),
    ]

    async def pause():
        looks.pop(0)()

    monkeypatch.setattr(status, "_pause", pause)
    assert said("logs", "tiny", "-f").splitlines() == [
        "tiny-a-0 | step 1",
        "tiny-b-0 | joined",
        "tiny-a-0 | step 2",
    ]
    assert looks == []
