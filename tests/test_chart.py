"""charts/heddle: every value is explained, and a wrong one is refused by name."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from heddle_operator.state.settings import settings_of
from tests.chart import CHART, HELM, bodies, needs_helm, template


def leaves(values, path=()):
    """The paths of all values that are no mapping."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_every_value_or_the_mapping_that_it_stands_in_is_explained():
    text = (CHART / "values.yaml").read_text()
    explained = set()
    path: tuple[str, ...] = ()
    lines = text.splitlines()
    for before, line in pairwise(lines):
        found = re.match(r"( *)([A-Za-z]+):", line)
        if found:
            path = (*path[: len(found[1]) // 2], found[2])
            if re.match(r" *# -- [A-Z/].*\.$", before):
                explained.add(path)
    wanted = list(leaves(yaml.safe_load(text)))
    assert len(wanted) > 50
    assert not [w for w in wanted if not {w[:n] for n in range(len(w) + 1)} & explained]


@needs_helm
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("worker=null", "missing property 'worker'"),
        ("podDisruptionBudget.maxUnavailable=0", "minimum: got 0, want 1"),
        ("podDisruptionBudget.maxUnavailable=0%", "'0%' does not match"),
        ("probes.liveness=null", "at '/probes': missing property 'liveness'"),
        ("probes.liveness.period=1", "at '/probes/liveness': additional properties 'period'"),
        ("image.repository=", "at '/image/repository': minLength"),
        ("image.pullPolicy=always", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("worker.shmPerGPU=lots", "at '/worker/shmPerGPU': 'lots' does not match"),
        ("worker.shmPerGPU=8", "at '/worker/shmPerGPU': got number, want string"),
        ("worker.perGPU.memory=-5Gi", "at '/worker/perGPU/memory': '-5Gi' does not match"),
        ("worker.template.containers=1", "at '/worker/template': additional properties"),
        (
            "worker.template.spec.containers.name=worker",
            "at '/worker/template/spec/containers': got object, want array",
        ),
        (
            "worker.template.spec.volumes[0].emptyDir.medium=Memory",
            "at '/worker/template/spec/volumes/0': missing property 'name'",
        ),
        ("worker.gpu.fabric=ethernet", "at '/worker/gpu/fabric': value must be one of 'auto'"),
        ("worker.gpu.wire=null", "at '/worker/gpu': missing property 'wire'"),
        ("worker.gpu=null", "at '/worker': missing property 'gpu'"),
        ("worker.image=null", "at '/worker': missing property 'image'"),
        ("worker.shmPerGPU=null", "at '/worker': missing property 'shmPerGPU'"),
        ("worker.image.repository=null", "at '/worker/image': missing property 'repository'"),
        ("lease.seconds=null", "at '/lease': missing property 'seconds'"),
        ("log.level=null", "at '/log': missing property 'level'"),
        ("metrics.port=null", "at '/metrics': missing property 'port'"),
        ("metrics.podMonitor=null", "at '/metrics': missing property 'podMonitor'"),
        ("worker.gpu.hostPorts=70000-80000", "at '/worker/gpu/hostPorts': '70000-80000' does not"),
        ("worker.gpu.hostPorts=8470-65536", "at '/worker/gpu/hostPorts': '8470-65536' does not"),
        ("worker.gpu.hostPorts=9000-8000", "found 9000-8000; write the smaller port first"),
        ("worker.perGPU.nvidia\\.com/gpu=1", "asks for nvidia.com/gpu; leave it out"),
        ("metrics.enabled=false,metrics.serviceMonitor.enabled=true", "set metrics.enabled=true"),
        ("metrics.prometheusRule.enabled=true", "set metrics.serviceMonitor.enabled=true"),
        ("networkPolicy.enabled=yes", "at '/networkPolicy/enabled': got string, want boolean"),
        ("strategy.type=Rolling", "at '/strategy/type': value must be one of 'RollingUpdate'"),
        ("revisionHistoryLimit=-1", "at '/revisionHistoryLimit': minimum: got -1, want 0"),
        ("extraObjects[0].kind=Secret", "at '/extraObjects/0': missing properties"),
        ("worker.gpu.hostPorts=8470", "at '/worker/gpu/hostPorts': got number, want string"),
        ("watchNamespaces={Team_A}", "at '/watchNamespaces/0': 'Team_A' does not match"),
        ("watchNamespaces={a,a}", "at '/watchNamespaces': items at 0 and 1 are equal"),
        ("resources.limit.memory=1Gi", "at '/resources': additional properties 'limit'"),
        ("podAnnotations.a=1", "at '/podAnnotations/a': got number, want string"),
        ("extraEnv[0].value=a", "at '/extraEnv/0': missing property 'name'"),
        ("test.url=metrics", "at '/test/url': 'metrics' does not match"),
        ("settings.killSecond=2", "at '/settings': additional properties 'killSecond' not allowed"),
        ("settings.killSeconds=0", "at '/settings/killSeconds': exclusiveMinimum: got 0, want 0"),
        ("fullnameOverride=A_B", "at '/fullnameOverride': 'A_B' does not match"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(setting, said):
    done = template("--set", setting)
    assert done.returncode != 0
    assert said in done.stderr


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"worker": {"perGPU": {"cpu": 12, "memory": "200Gi", "rdma/hca": "1"}}},
        {"worker": {"template": {"spec": {"runtimeClassName": "nvidia"}}}},
        {"watchNamespaces": ["team-a", "team-b"], "readAllPods": True},
        {"resources": {"requests": {"cpu": 0.5, "memory": "1e9"}, "limits": None}},
        {"priorityClassName": "system-cluster-critical", "serviceAccount": {"name": "a.b"}},
        {"global": {"anything": 1}},
        {"worker": {"extraEnv": None}},
        {"settings": {"podTimeoutSeconds": 1200, "epochsKept": 5}},
    ],
)
def test_a_value_that_can_be_meant_is_taken(tmp_path, values):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = template("--values", str(file))
    assert (done.returncode, done.stderr) == (0, "")


@needs_helm
def test_the_upgrade_that_is_documented_takes_a_commit_of_digits():
    """A commit may have no letter, and YAML takes such a tag for a number."""
    text = (CHART.parents[1] / "docs" / "operate.md").read_text()
    (command,) = re.findall(r"helm upgrade heddle charts/heddle ((?:.*\\\n)*.*)", text)
    options = command.replace("\\\n", " ").replace("$TAG", "1234567").split()
    options.remove("--reset-then-reuse-values")
    done = template(*options)
    assert done.returncode == 0, done.stderr
    assert "image: heddle-operator:1234567" in done.stdout
    assert "--worker-image=heddle-worker:1234567" in done.stdout


@needs_helm
def test_the_values_that_the_guide_shows_are_taken(tmp_path):
    text = (CHART.parents[1] / "docs" / "operate.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        file = tmp_path / "values.yaml"
        file.write_text(block)
        done = template("--values", str(file))
        assert (done.returncode, done.stderr) == (0, "")


@needs_helm
def test_values_of_an_older_chart_are_taken_over_the_defaults_of_this_one():
    """As `--reset-then-reuse-values` merges them."""
    done = template("--values", str(Path(__file__).with_name("older_values.yaml")))
    assert (done.returncode, done.stderr) == (0, "")
    assert "--namespace=team-a" in done.stdout


@needs_helm
def test_settings_reach_the_operator_as_a_file():
    done = template("--set", "settings.podTimeoutSeconds=1200")
    found = list(yaml.safe_load_all(done.stdout))
    (file,) = [row["data"] for row in found if row["kind"] == "ConfigMap"]
    assert settings_of(yaml.safe_load(file["settings.yaml"]), "f").pod_timeout_s == 1200
    (pod,) = [row["spec"]["template"]["spec"] for row in found if row["kind"] == "Deployment"]
    assert "--settings=/etc/heddle/settings.yaml" in pod["containers"][0]["args"]


@needs_helm
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("crds.keep=true", "keeps the resource HeddleJob and all jobs"),
        ("crds.keep=false", "REMOVES the resource HeddleJob and ALL JOBS"),
        ("crds.keep=false,crds.enabled=false", "keeps the resource HeddleJob and all jobs"),
    ],
)
def test_the_notes_say_what_becomes_of_the_jobs(settings, said):
    command = [str(HELM), "install", "trial", str(CHART), "--dry-run=client", "--set", settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"Uninstalling this release {said}" in done.stdout


@needs_helm
def test_the_notes_say_how_a_release_of_another_name_gets_the_resource():
    command = [str(HELM), "install", "trial", str(CHART), "--dry-run=client"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "add --take-ownership" in done.stdout


@needs_helm
@pytest.mark.parametrize("is_served", [True, False])
def test_metrics_are_tested_where_they_are_served(is_served):
    done = template("--set", f"metrics.enabled={str(is_served).lower()}")
    assert ("helm.sh/hook: test" in done.stdout) is is_served
    assert ("kind: Service\n" in done.stdout) is is_served


PLACE = {
    "image": {"pullSecrets": [{"name": "registry"}]},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.0.0.53"]},
    "resources": {"limits": {"memory": "1Gi"}},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
}


@needs_helm
@pytest.mark.parametrize("values", [{}, PLACE])
def test_the_pod_of_helm_test_runs_where_the_operator_may(tmp_path, values):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    found = {body["kind"]: body for body in yaml.safe_load_all(template(f"--values={file}").stdout)}
    operator, tested = found["Deployment"]["spec"]["template"]["spec"], found["Pod"]["spec"]
    for key in (
        *("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName"),
        *("dnsPolicy", "dnsConfig", "securityContext"),
    ):
        assert tested.get(key) == operator.get(key), key
    (container,), (its_own,) = operator["containers"], tested["containers"]
    for key in ("image", "imagePullPolicy", "resources", "securityContext"):
        assert its_own[key] == container[key], key
    for key in ("env", "volumeMounts"):
        assert all(row in container[key] for row in its_own.get(key, ()))
    if values:
        assert its_own["env"] == values["extraEnv"]
        assert tested["volumes"] == values["extraVolumes"]


@needs_helm
def test_the_pod_of_helm_test_is_none_of_the_service_or_the_deployment():
    found = {body["kind"]: body for body in yaml.safe_load_all(template().stdout)}
    labels = found["Pod"]["metadata"]["labels"].items()
    assert not found["Service"]["spec"]["selector"].items() <= labels
    assert not found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels


@needs_helm
def test_two_operators_are_apart_and_a_drain_evicts_one_at_a_time():
    found = {body["kind"]: body["spec"] for body in bodies() if "spec" in body}
    budget, deployment = found["PodDisruptionBudget"], found["Deployment"]
    assert deployment["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == deployment["selector"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == deployment["selector"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    off = bodies("--set", "podDisruptionBudget.enabled=false")
    assert "PodDisruptionBudget" not in {body["kind"] for body in off}


def base_container(*arguments):
    """The worker container below the jobs' templates."""
    done = template(*arguments)
    assert done.returncode == 0, done.stderr
    maps = [row for row in yaml.safe_load_all(done.stdout) if row and row["kind"] == "ConfigMap"]
    (data,) = (row["data"] for row in maps if "base.yaml" in row["data"])
    return yaml.safe_load(data["base.yaml"])["spec"]["containers"][0]


@needs_helm
def test_a_worker_has_no_variable_and_no_capability_unless_values_say_so():
    container = base_container()
    assert "env" not in container
    assert "securityContext" not in container


@needs_helm
@pytest.mark.parametrize(
    ("fabric", "variables"),
    [
        ("tcp", {"NCCL_IB_DISABLE": "1"}),
        ("infiniband", {"NCCL_NET": "IB"}),
        ("roce", {"NCCL_NET": "IB", "NCCL_IB_GID_INDEX": "3"}),
        ("efa", {"FI_PROVIDER": "efa"}),
    ],
)
def test_a_fabric_has_its_variables_and_a_further_one_overrides_them(fabric, variables):
    gpu = {"wire": "nccl", "interface": "eth0", "fabric": fabric}
    said = [part for key, value in gpu.items() for part in ("--set", f"worker.gpu.{key}={value}")]
    further = {"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}
    said += ["--set", "worker.extraEnv[0].name=NCCL_SOCKET_IFNAME"]
    said += ["--set", "worker.extraEnv[0].value=ib0"]
    found = base_container(*said)["env"]
    assert found[-1] == further
    assert {row["name"]: row["value"] for row in found} == {
        "HEDDLE_WIRE": "nccl",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "ib0",
        **variables,
    }


@needs_helm
def test_locked_memory_is_the_one_capability_that_values_give():
    container = base_container("--set", "worker.gpu.ipcLock=true")
    assert container["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


@needs_helm
def test_the_network_of_the_host_is_in_the_base_of_all_pods_with_a_range_of_ports():
    given = ("worker.gpu.hostNetwork=true", "worker.gpu.hostPorts=9000-9007")
    done = template(*(part for value in given for part in ("--set", value)))
    found = list(yaml.safe_load_all(done.stdout))
    maps = (row["data"] for row in found if row["kind"] == "ConfigMap")
    (data,) = (row for row in maps if "base.yaml" in row)
    spec = yaml.safe_load(data["base.yaml"])["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    (pod,) = (row["spec"]["template"]["spec"] for row in found if row["kind"] == "Deployment")
    assert "--worker-host-ports=9000-9007" in pod["containers"][0]["args"]
