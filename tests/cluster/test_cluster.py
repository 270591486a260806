"""The harness does what its users rely on: real nodes, faults as real ones look, nothing left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import NODES, Json, condition, gpus, pods
from tests.cluster.assets import KUBERNETES_VERSION
from tests.cluster.cgroups import trees
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import GPU_RESOURCE, NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.host_mounts import host_mounts
from tests.cluster.processes import Process
from tests.cluster.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
NOTICED_WITHIN_S = 40.0  # NotReady comes after 8 s of silence; the rest is for a busy machine
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=3).status)"
CALL_API = (
    "import json, ssl, urllib.request as u\n"
    "at = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
    "trust = ssl.create_default_context(cafile=at + 'ca.crt')\n"
    "ask = u.Request('https://10.0.0.1/version', headers={\n"
    "    'Authorization': 'Bearer ' + open(at + 'token').read()})\n"
    "print(json.load(u.urlopen(ask, timeout=3, context=trust))['gitVersion'])\n"
)


def run_pod(cluster: Cluster, name: str, node: str = "", gpus: int = 0, **spec: Any) -> None:
    """Create a pod that serves its scratch folder on port 8000 with the host's Python."""
    container = host_mounts().container(
        "main", "-m", "http.server", "8000", "--directory", "/scratch"
    )
    container["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    if gpus:
        container["resources"] = {"limits": {GPU_RESOURCE: gpus}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            **host_mounts().pod_spec(container),
            "restartPolicy": "Never",
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            **spec,
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def wait_for_pod(cluster: Cluster, name: str, claim: Callable[[Json], bool], what: str) -> Json:
    """The pod, once the claim holds of it."""
    seen = cluster.api.wait(
        pods(), lambda all_: name in all_ and claim(all_[name]), NOTICED_WITHIN_S, what
    )
    return seen[name]


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready") == "True"


def wait_for_node(cluster: Cluster, name: str, claim: Callable[[Json], bool], what: str) -> Json:
    """The node, once the claim holds of it."""
    seen = cluster.api.wait(NODES, lambda all_: claim(all_[name]), NOTICED_WITHIN_S, what)
    return seen[name]


def wait_until_not_ready(cluster: Cluster, node: str) -> None:
    wait_for_node(cluster, node, lambda n: condition(n, "Ready") != "True", f"{node} NotReady")


def execute(cluster: Cluster, pod: str, program: str, *arguments: str) -> str:
    """Run a Python program in the pod; what it prints."""
    python = str(host_mounts().python)
    return cluster.kubectl("exec", pod, "--", python, "-c", program, *arguments).strip()


def pod_url(cluster: Cluster, pod: str) -> str:
    found = cluster.api.get(f"{pods()}/{pod}")
    return f"http://{found['status']['podIP']}:8000/"


def two_talking_pods(cluster: Cluster) -> str:
    """Start pod `a` on n1 and pod `b` on n2; the URL at which `a` reaches `b`."""
    run_pod(cluster, "a", node="n1")
    run_pod(cluster, "b", node="n2")
    for name in "ab":
        wait_for_pod(cluster, name, is_ready, f"pod {name} Ready")
    url = pod_url(cluster, "b")
    assert execute(cluster, "a", FETCH, url) == "200"
    return url


def test_nodes_are_ready_and_say_what_gpus_they_have(cluster):
    seen = {node["metadata"]["name"]: node for node in cluster.api.get(NODES)["items"]}
    assert {name: gpus(node) for name, node in seen.items()} == {"n1": 4, "n2": 4}
    labels = {name: node["metadata"]["labels"] for name, node in seen.items()}
    assert labels["n1"]["nvidia.com/gpu.product"] == "demo-fast"
    assert labels["n2"]["nvidia.com/gpu.product"] == "demo-slow"
    versions = {node["status"]["nodeInfo"]["kubeletVersion"] for node in seen.values()}
    assert versions == {f"v{KUBERNETES_VERSION}"}


def test_a_pod_gets_its_gpus_and_runs_the_checkout_unprivileged(cluster):
    locked = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    run_pod(cluster, "trainer", gpus=3, securityContext=locked)
    wait_for_pod(cluster, "trainer", is_ready, "pod trainer Ready")
    program = "import os, planner; print(os.environ['NVIDIA_VISIBLE_DEVICES'], os.getuid())"
    ids, uid = execute(cluster, "trainer", program).split()
    assert len(set(ids.split(","))) == 3
    assert uid == "1000"


def test_gpus_beyond_what_there_is_stay_pending_until_some_are_freed(cluster):
    for number in (1, 2):
        run_pod(cluster, f"full-{number}", gpus=4)
        wait_for_pod(cluster, f"full-{number}", is_ready, "a pod with all GPUs of a node Ready")
    run_pod(cluster, "waiting", gpus=4)
    pod = wait_for_pod(
        cluster, "waiting", lambda p: condition(p, "PodScheduled") == "False", "an unfit pod"
    )
    assert "Insufficient nvidia.com/gpu" in json.dumps(pod["status"]["conditions"])
    cluster.kubectl("delete", "pod", "full-1", "--grace-period=1")
    wait_for_pod(cluster, "waiting", is_ready, "the waiting pod Ready")


def test_pods_reach_each_other_and_the_api_server_and_nothing_else(cluster):
    two_talking_pods(cluster)
    assert execute(cluster, "a", CALL_API) == f"v{KUBERNETES_VERSION}"
    # TEST-NET-1 stands for the rest of the world.
    with pytest.raises(ClusterFailed, match=r"unreachable|No route"):
        execute(cluster, "a", FETCH, "http://192.0.2.1/")


def test_a_node_whose_power_fails_is_not_ready_and_comes_back_with_its_pods_failed(cluster):
    run_pod(cluster, "victim", node="n1")
    wait_for_pod(cluster, "victim", is_ready, "pod victim Ready")
    before = cluster.api.get(f"{NODES}/n1")["status"]["nodeInfo"]["bootID"]
    cluster.power_off("n1")
    wait_until_not_ready(cluster, "n1")
    cluster.heal("n1")
    cluster.wait_for_nodes("n1")
    after = cluster.api.get(f"{NODES}/n1")["status"]["nodeInfo"]["bootID"]
    assert after != before
    wait_for_pod(cluster, "victim", lambda p: p["status"]["phase"] == "Failed", "victim Failed")
    run_pod(cluster, "next", node="n1", gpus=4)
    wait_for_pod(cluster, "next", is_ready, "a pod on the node that is back")


def test_peers_of_a_node_whose_power_fails_get_silence_and_no_reset(cluster):
    url = two_talking_pods(cluster)
    cluster.power_off("n2")
    with pytest.raises(ClusterFailed, match="timed out"):
        execute(cluster, "a", FETCH, url)


def test_a_cut_node_is_not_ready_while_its_pods_go_on(cluster):
    url = two_talking_pods(cluster)
    cluster.cut("n2")
    wait_until_not_ready(cluster, "n2")
    assert cluster.is_on("n2")
    with pytest.raises(ClusterFailed, match=r"timed out|No route"):
        execute(cluster, "a", FETCH, url)
    cluster.heal("n2")
    cluster.wait_for_nodes("n2")
    assert execute(cluster, "a", FETCH, url) == "200"


def test_a_node_cut_from_the_api_server_is_not_ready_while_its_pods_still_serve(cluster):
    url = two_talking_pods(cluster)
    cluster.cut_api("n2")
    wait_until_not_ready(cluster, "n2")
    assert execute(cluster, "a", FETCH, url) == "200"
    cluster.heal("n2")
    cluster.wait_for_nodes("n2")


def test_nodes_cut_from_their_peers_stay_ready_and_reach_the_api_server(cluster):
    url = two_talking_pods(cluster)
    cluster.isolate_data_plane()
    with pytest.raises(ClusterFailed, match="timed out"):
        execute(cluster, "a", FETCH, url)
    assert execute(cluster, "a", CALL_API) == f"v{KUBERNETES_VERSION}"
    with pytest.raises(ClusterFailed, match="waited"):
        cluster.api.wait(
            NODES,
            lambda all_: any(condition(node, "Ready") != "True" for node in all_.values()),
            12.0,  # more silence than a node is allowed
            "a node that is not Ready",
        )
    cluster.heal_data_plane()
    assert execute(cluster, "a", FETCH, url) == "200"


def test_a_sick_gpu_lowers_allocatable_and_not_capacity(cluster):
    cluster.sick_gpu("n1", 2)
    node = wait_for_node(cluster, "n1", lambda n: gpus(n) == 3, "n1 with three GPUs")
    assert node["status"]["capacity"][GPU_RESOURCE] == "4"
    cluster.heal_gpus("n1")
    wait_for_node(cluster, "n1", lambda n: gpus(n) == 4, "n1 with four GPUs")


def test_a_restarted_kubelet_knows_no_gpu_at_first_while_the_node_stays_ready(cluster):
    run_pod(cluster, "trainer", node="n1", gpus=1)
    wait_for_pod(cluster, "trainer", is_ready, "pod trainer Ready")
    cluster.restart_kubelet("n1")
    node = wait_for_node(
        cluster, "n1", lambda n: n["status"]["capacity"][GPU_RESOURCE] == "0", "capacity 0"
    )
    assert condition(node, "Ready") == "True"
    cluster.wait_for_nodes("n1")
    pod = cluster.api.get(f"{pods()}/trainer")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_frozen_pod_looks_running_and_answers_nobody(cluster):
    url = two_talking_pods(cluster)
    cluster.freeze("b")
    with pytest.raises(ClusterFailed, match="timed out"):
        execute(cluster, "a", FETCH, url)
    assert cluster.api.get(f"{pods()}/b")["status"]["phase"] == "Running"
    cluster.thaw("b")
    assert execute(cluster, "a", FETCH, url) == "200"


def test_pods_outlive_the_api_server(cluster):
    run_pod(cluster, "a")
    before = wait_for_pod(cluster, "a", is_ready, "pod a Ready")
    cluster.stop_api_server()
    with pytest.raises(OSError, match=r"."):
        cluster.api.get(NODES)
    cluster.start_api_server()
    cluster.wait_for_nodes()
    after = cluster.api.get(f"{pods()}/a")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]


def test_a_node_joins_and_runs_images_loaded_before(cluster, assets):
    cluster.load_image(assets.image)
    cluster.add_node("n3", gpus=2, gpu_type="demo-slow")
    run_pod(cluster, "new", node="n3", gpus=2)
    wait_for_pod(cluster, "new", is_ready, "pod new Ready")
    with pytest.raises(ClusterFailed, match="n3 already"):
        cluster.add_node("n3")


def test_helm_installs_into_the_cluster_and_not_elsewhere(cluster, tmp_path):
    chart = tmp_path / "trial"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: trial\nversion: 1.0.0\n")
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-helm}\n"
    (chart / "templates" / "map.yaml").write_text(body)
    cluster.helm("install", "trial", str(chart))
    assert "from-helm" in cluster.kubectl("get", "configmap", "--output=name")
    cluster.helm("uninstall", "trial")


def ours_among_mounts_and_links(folder: Path) -> list[str]:
    """What of a cluster the host shows: mounts below its folder, links of its cables."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    links = [link.name for link in Path("/sys/class/net").iterdir()]
    return [m for m in mounts if str(folder) in m] + [link for link in links if "cable" in link]


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])
def test_closing_leaves_nothing_behind_even_with_a_frozen_pod(assets, place):
    folder = Path(tempfile.mkdtemp(prefix="heddle-cluster-", dir=place))
    with Cluster.start([NodeSpec("n1", 1)], folder, assets) as cluster:
        run_pod(cluster, "stuck", gpus=1)
        wait_for_pod(cluster, "stuck", is_ready, "pod stuck Ready")
        cluster.freeze("stuck")
        processes = Record.read(folder).processes
        name = Record.read(folder).name
        assert len(processes) == 10
        assert all(process.alive() for process in processes.values())
        assert any((tree / name).exists() for tree in trees())
        assert not ours_among_mounts_and_links(folder)  # not even while it runs
    assert not any(process.alive() for process in processes.values())
    assert not any((tree / name).exists() for tree in trees())
    assert not ours_among_mounts_and_links(folder)
    assert not folder.exists()


def test_a_killed_program_takes_its_cluster_along(assets, tmp_path):
    folder = tmp_path / "cluster"
    program = (
        "import sys, time; from pathlib import Path; from tests.cluster.cluster import Cluster\n"
        "Cluster.start(folder=Path(sys.argv[1])); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        processes = Record.read(folder).processes
        watched = [os.pidfd_open(process.pid) for process in processes.values()]
        running.send_signal(signal.SIGKILL)
    for handle in watched:
        wait_for_end(handle)
    assert not any(process.alive() for process in processes.values())
    Cluster.open(folder, assets).close()
    assert not folder.exists()


def wait_for_end(handle: int) -> None:
    """Wait for the end of a process that another program started."""
    assert select.select([handle], [], [], 10.0)[0]
    os.close(handle)


def test_the_end_of_a_process_is_waited_for_and_told_from_a_time_out(cluster, tmp_path):
    server = cluster.api.get("/version")["gitVersion"]
    log = tmp_path / "log"
    kubectl = [cluster.assets.path("kubectl"), "version"]
    process = cluster.spawn(kubectl, log, {})
    assert process.ends_within(NOTICED_WITHIN_S)
    assert f"Server Version: {server}" in log.read_text()
    process = cluster.spawn(["sleep", "600"], log, {})
    assert not process.ends_within(0.1)
    process.kill()
    assert process.ends_within(0)


def test_a_process_that_reused_a_pid_is_not_killed():
    with subprocess.Popen(["sleep", "600"]) as running:
        try:
            found = Process.of(running.pid)
            Process(running.pid, found.started - 1).kill()
            assert found.alive()
        finally:
            running.kill()
