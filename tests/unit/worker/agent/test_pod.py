"""worker/agent/pod.py: the agent as a process: when it listens, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from heddle.local.processes import processes_with

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
MARK = "HEDDLE_TEST_POD"
LIMIT_S = 60.0


@pytest.fixture(params=[()])
def pod(tmp_path, request):
    """An agent that listens, its port, and the marker that all its processes carry."""
    (tmp_path / "token").write_text("secret\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "worker", "agent", "--job", "tiny", "--pod", "tiny-a-0"),
            *("--node", "a", "--gpus", "1", "--token-file", str(tmp_path / "token")),
            *("--exit-with-parent", *request.param),
        ],
        cwd=ROOT,
        env={**os.environ, MARK: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        said = json.loads(process.stdout.readline())
        yield process, said, str(tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert processes_with(**{MARK: str(tmp_path)}) == ()


def ask(said, path, method="GET"):
    url = f"http://{said['host']}:{said['port']}{path}"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"}, method=method)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.read()


def test_it_listens_where_its_first_line_says(pod):
    _, said, _ = pod
    assert set(said) == {"port", "host"}
    report = json.loads(ask(said, "/v1/report"))
    assert (report["job"], report["pod"], report["node"]) == ("tiny", "tiny-a-0", "a")
    assert report["fork_server_pid"] is not None


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "end", "parent"])
def test_a_pod_without_ranks_ends_well_at_once_however_it_is_told(pod, how):
    process, said, _ = pod
    ask(said, "/healthz")
    if how == "end":
        ask(said, "/v1/end", "PUT")
    elif how == "parent":
        process.stdin.close()
        process.stdin = None
    else:
        process.send_signal(getattr(signal, how))
    assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("pod", [("--ignore-sigterm",)], indirect=True)
def test_a_pod_of_a_run_here_leaves_sigterm_to_its_parent(pod):
    process, said, mark = pod
    ask(said, "/healthz")
    before = processes_with(**{MARK: mark})
    for pid in before:  # as Slurm and systemd send it
        os.kill(pid, signal.SIGTERM)
    assert json.loads(ask(said, "/v1/report"))["fork_server_pid"] in before
    assert processes_with(**{MARK: mark}) == before
    process.stdin.close()
    process.stdin = None
    assert process.wait(LIMIT_S) == 0


def test_a_pod_that_ends_with_its_parent_and_has_none_ends_well_at_once(tmp_path):
    (tmp_path / "token").write_text("secret")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "worker", "agent", "--job", "tiny", "--pod", "tiny-a-0"),
            *("--node", "a", "--gpus", "1", "--token-file", str(tmp_path / "token")),
            "--exit-with-parent",
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pod_whose_fork_server_dies_is_lost(pod):
    process, said, _ = pod
    os.kill(json.loads(ask(said, "/v1/report"))["fork_server_pid"], signal.SIGKILL)
    assert process.wait(LIMIT_S) == 1


def test_an_agent_that_is_killed_takes_its_processes_with_it(pod):
    process, _, mark = pod
    process.kill()
    process.wait(LIMIT_S)

    deadline = time.monotonic() + LIMIT_S
    while processes_with(**{MARK: mark}):
        assert time.monotonic() < deadline


def test_an_agent_loads_neither_torch_nor_a_store_of_checkpoints():
    """It would hold 0.4 GB for nothing, and listen seconds later; it looks into checkpoints too."""
    code = (
        "import sys, worker.agent.pod, worker.checkpoint.looking; "
        "assert not {'torch', 'deepspeed', 'botocore', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
