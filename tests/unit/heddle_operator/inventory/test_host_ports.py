"""Two pods with the network of one host never have one port."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.apis.errors import NoHostPort
from heddle_operator.inventory.host_ports import free_port, host_ports, range_of
from tests.unit.heddle_operator.resources.test_pods import ACTION, DEFAULTS, a_job, pod_body

HOST = {"spec": {"hostNetwork": True}}
names = st.lists(st.text("abc-0123", min_size=1), min_size=1, max_size=8, unique=True)


def a_pod(spec=None, phase="Running", **row):
    return {"spec": {"containers": [{"ports": [row]}], **(spec or {})}, "status": {"phase": phase}}


@given(names, st.integers(1, 8))
def test_pods_of_one_node_have_different_ports_while_there_are_any(pods, size):
    ports, taken = range(8470, 8470 + size), set()
    for pod in pods[:size]:
        port = free_port(ports, frozenset(taken), pod, "n1")
        assert port in ports
        assert port not in taken
        assert port == free_port(ports, frozenset(taken), pod, "n1")
        taken.add(port)
    if len(taken) == size:
        with pytest.raises(NoHostPort) as caught:
            free_port(ports, frozenset(taken), "one-more", "n1")
        assert (caught.value.code, caught.value.field) == ("Taken", "worker.gpu.hostPorts")


def test_a_port_is_taken_by_pods_of_the_host_and_by_ports_of_the_host_alone():
    own = {"hostNetwork": True}
    pods = [
        a_pod(own, containerPort=1),
        a_pod(containerPort=2),
        a_pod(containerPort=3, hostPort=4),
        a_pod(own, "Failed", containerPort=5),
    ]
    assert host_ports(pods) == {1, 4}


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8470-8472", range(8470, 8473)),
        ("1-65535", range(1, 65536)),
        ("8470", None),
        ("9-8", None),
        ("0-8", None),
        ("1-65536", None),
        ("a-b", None),
    ],
)
def test_a_range_is_of_ports_that_there_are(text, ports):
    assert range_of(text) == ports


def test_a_pod_listens_on_its_port_of_the_host_and_is_a_host_of_its_own_for_nccl():
    near = [pod_body(a_job(HOST), ACTION, DEFAULTS, 0.0)]
    pod = pod_body(a_job(HOST), ACTION, DEFAULTS, 0.0, host_ports(near))
    first, second = (one["spec"]["containers"][0] for one in (near[0], pod))
    (port,) = (row["containerPort"] for row in second["ports"])
    assert port not in {row["containerPort"] for row in first["ports"]}
    assert second["args"][second["args"].index("--port") + 1] == str(port)
    assert second["livenessProbe"]["httpGet"]["port"] == port
    assert {"name": "NCCL_HOSTID", "value": ACTION.name} in second["env"]
    later = pod_body(a_job(HOST), ACTION, DEFAULTS, 60.0)["spec"]["containers"][0]
    assert later["ports"] != first["ports"], "something that no watch tells may hold the port"
    usual = pod_body(a_job(), ACTION, DEFAULTS, 0.0, host_ports(near))["spec"]["containers"][0]
    assert [row["containerPort"] for row in usual["ports"]] == [8470]
    assert "NCCL_HOSTID" not in {row["name"] for row in usual["env"]}
