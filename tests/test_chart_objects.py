"""charts/heddle: monitors, alerts, limits of the network, and labels of all objects."""

from __future__ import annotations

import json
import re
from typing import get_args

import yaml

from heddle_operator.apis.labels import AGENT_PORT
from heddle_operator.state.decision import Phase
from heddle_operator.telemetry.metrics import OperatorMetrics
from tests.chart import CHART, bodies, needs_helm, template
from tests.unit.heddle_operator.resources.test_pods import a_pod, worker


@needs_helm
def test_monitors_select_the_service_and_the_worker_pods():
    assert not [body for body in bodies() if body["kind"].endswith("Monitor")]
    asked = ("serviceMonitor.enabled=true", "podMonitor.enabled=true", "podMonitor.interval=30s")
    found = bodies(*(word for one in asked for word in ("--set", f"metrics.{one}")))
    kinds = {body["kind"]: body for body in found}
    monitor, service = kinds["ServiceMonitor"]["spec"], kinds["Service"]
    labels = monitor["selector"]["matchLabels"]
    assert labels.items() <= service["metadata"]["labels"].items()
    port = service["spec"]["ports"][0]["name"]
    assert monitor["endpoints"] == [{"port": port, "honorLabels": True}]
    pods, pod = kinds["PodMonitor"]["spec"], a_pod()
    assert pods["namespaceSelector"] == {"any": True}
    assert pods["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {*pods["podTargetLabels"]} <= pod["metadata"]["labels"].keys()
    (endpoint,) = pods["podMetricsEndpoints"]
    assert endpoint == {"port": worker(pod)["ports"][0]["name"], "interval": "30s"}
    some = bodies("--set", "metrics.podMonitor.enabled=true", "--set", "watchNamespaces={a,b}")
    (only,) = (body["spec"] for body in some if body["kind"] == "PodMonitor")
    assert only["namespaceSelector"] == {"matchNames": ["a", "b"]}


@needs_helm
def test_alerts_read_series_that_are_there_and_phases_that_jobs_have():
    given = ("metrics.serviceMonitor.enabled=true", "metrics.prometheusRule.enabled=true")
    found = {body["kind"]: body for body in bodies(*(part for g in given for part in ("--set", g)))}
    (group,) = found["PrometheusRule"]["spec"]["groups"]
    metrics = OperatorMetrics()
    told = {f.name for f in (*metrics.registry.collect(), *metrics.jobs.collect())}
    service = found["Service"]["metadata"]["name"]
    text = (CHART.parents[1] / "docs" / "reference" / "conditions.md").read_text()
    for rule in group["rules"]:
        assert set(re.findall(r"heddle_\w+", rule["expr"])) <= told
        for phases in re.findall(r'phase=~"(.*?)"', rule["expr"]):
            assert {*phases.split("|")} <= {*get_args(Phase), "Invalid"}
        assert all(name == service for name in re.findall(r'service="(.*?)"', rule["expr"]))
        assert f"| {rule['alert']} |" in text
        assert "{{ print" not in rule["annotations"]["summary"]
    assert "PrometheusRule" not in {body["kind"] for body in bodies()}


@needs_helm
def test_the_dashboard_reads_series_that_are_there_and_nothing_of_it_overlaps():
    found = {body["kind"]: body for body in bodies("--set", "metrics.dashboard.enabled=true")}
    board = found["ConfigMap"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads(board["data"]["heddle.json"])
    names = {variable["name"] for variable in board["templating"]["list"]}
    text = (CHART.parents[1] / "docs" / "reference" / "conditions.md").read_text()
    metrics = OperatorMetrics()
    told = {f.name for f in (*metrics.registry.collect(), *metrics.jobs.collect())}
    told |= {f"{name}_{end}" for name in told for end in ("bucket", "total")}
    told |= set(re.findall(r"`(heddle_worker_\w+)`", text))
    filled = set[tuple[int, int]]()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & filled
        filled |= cells
        for target in panel.get("targets", ()):
            assert set(re.findall(r"heddle_(?!dev)\w+", target["expr"])) <= told
            given = set(re.findall(r"\$(\w+)", target["expr"]))
            assert given <= names | {"__range", "__rate_interval"}
            assert "{{ " not in target["legendFormat"]
    assert max(x for x, _ in filled) == 23
    assert "dashboard" not in str([body["metadata"]["name"] for body in bodies()])


@needs_helm
def test_a_network_policy_leaves_the_port_of_metrics_and_what_the_operator_reaches(tmp_path):
    api_server = {"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [{"port": 6443}]}
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert not [body for body in bodies() if body["kind"] == "NetworkPolicy"]
    values = {"networkPolicy": {"enabled": True}, "metrics": {"port": 9090}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    found = {body["kind"]: body for body in bodies(f"--values={tmp_path}/values.yaml")}
    spec = found["NetworkPolicy"]["spec"]
    assert spec["podSelector"] == found["Deployment"]["spec"]["selector"]
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress"], [{"ports": [{"port": 9090}]}])
    values["networkPolicy"] |= {"from": [peer], "egress": [api_server]}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    found = {body["kind"]: body for body in bodies(f"--values={tmp_path}/values.yaml")}
    spec, labels = found["NetworkPolicy"]["spec"], a_pod()["metadata"]["labels"]
    assert spec["ingress"][0]["from"] == [peer]
    _, workers, own = spec["egress"]
    assert own == api_server
    assert workers["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert workers["ports"] == [{"port": AGENT_PORT}]


@needs_helm
def test_further_objects_are_of_the_release_and_the_deployment_has_its_strategy(tmp_path):
    further = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-x"}}
    values = {"extraObjects": [further], "strategy": {"type": "Recreate"}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values | {"revisionHistoryLimit": 2}))
    found = {body["kind"]: body for body in bodies(f"--values={tmp_path}/values.yaml")}
    assert found["Secret"]["metadata"] == {"name": "trial-x"}
    deployment = found["Deployment"]["spec"]
    assert (deployment["strategy"], deployment["revisionHistoryLimit"]) == ({"type": "Recreate"}, 2)


class OneKeyOnce(yaml.SafeLoader):
    """Refuses a key that comes twice in a map, as strict parsers do."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


@needs_helm
def test_a_label_that_several_maps_have_is_written_once_and_ours_win(tmp_path):
    own = {"team": "a", "app.kubernetes.io/name": "other"}
    monitor = {"enabled": True, "labels": own}
    values = {"commonLabels": own, "podLabels": own}
    values["metrics"] = {"serviceMonitor": monitor, "podMonitor": monitor}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    text = template("--values", str(tmp_path / "values.yaml")).stdout
    found = [body for body in yaml.load_all(text, OneKeyOnce) if body]
    assert {"Deployment", "ServiceMonitor", "PodMonitor"} <= {body["kind"] for body in found}
    assert '"other"' not in text
    assert "name: other" not in text
