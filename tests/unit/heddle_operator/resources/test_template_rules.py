"""heddle_operator/resources/template_rules.py: an author gets what training needs, no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.resources.template_rules import (
    GRANTABLE,
    administrators_problems,
    check_allowed,
    problems_of,
)
from tests.refusals import refused
from tests.unit.heddle_operator.resources.jobs import a_job

ROOT = Path(__file__).parents[4]
WHERE = "spec.worker.template"
ALLOWED = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "image": "mine:2",
                "imagePullPolicy": "Always",
                "command": ["heddle"],
                "args": ["--emulate"],
                "workingDir": "/work",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                ],
                "envFrom": [{"prefix": "X_", "secretRef": {"name": "s"}}],
                "resources": {"limits": {"memory": "8Gi"}},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data", "readOnly": True},
                    {"name": "heddle-shm", "mountPath": "/shm"},
                ],
                "securityContext": {
                    "runAsUser": 1000,
                    "privileged": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            },
            {"name": "sidecar", "image": "s", "resources": {"requests": {"cpu": "1"}}},
        ],
        "initContainers": [{"name": "fetch", "image": "f"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "d"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "settings", "configMap": {"name": "c"}},
            {"name": "key", "secret": {"secretName": "s"}},
        ],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "team", "operator": "Exists", "tolerationSeconds": 5}],
        "affinity": {"podAntiAffinity": {}},
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "low",
        "terminationGracePeriodSeconds": 90,
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 1000},
        "hostNetwork": False,
    },
}


def spec(**fields):
    return {"spec": fields}


def worker(**fields):
    return spec(containers=[{"name": "worker", **fields}])


def secured(**fields):
    return worker(securityContext=fields)


def volume(**kind):
    return spec(volumes=[{"name": "v", **kind}])


GRANTED = {
    "hostNetwork": spec(hostNetwork=True),
    "hostPID": spec(hostPID=True),
    "hostIPC": spec(hostIPC=True),
    "serviceAccountName": spec(serviceAccountName="admin"),
    "automountServiceAccountToken": spec(automountServiceAccountToken=True),
    "schedulerName": spec(schedulerName="mine"),
    "runtimeClassName": spec(runtimeClassName="bare"),
    "dnsConfig": spec(dnsConfig={"nameservers": ["10.0.0.9"]}),
    "hostPath": volume(hostPath={"path": "/"}),
    "projected": volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
    "csi": volume(csi={"driver": "d"}),
    "nfs": volume(nfs={"server": "s"}),
    "privileged": secured(privileged=True),
    "capabilities": secured(capabilities={"add": ["SYS_ADMIN"]}),
    "allowPrivilegeEscalation": secured(allowPrivilegeEscalation=True),
    "runAsUser": secured(runAsUser=0),
    "runAsNonRoot": spec(securityContext={"runAsNonRoot": False}),
    "seccompProfile": secured(seccompProfile={"type": "Unconfined"}),
    "procMount": secured(procMount="Unmasked"),
    "sysctls": spec(securityContext={"sysctls": [{"name": "a", "value": "1"}]}),
    "hostPort": worker(ports=[{"containerPort": 1, "hostPort": 1}]),
    "livenessProbe": worker(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 1}}),
    "lifecycle": worker(lifecycle={"preStop": {"exec": {"command": ["true"]}}}),
    "mountPropagation": worker(
        volumeMounts=[
            {"name": "heddle-tmp", "mountPath": "/a", "mountPropagation": "Bidirectional"}
        ]
    ),
    "appArmorProfile": {
        "metadata": {
            "annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}
        }
    },
}


def test_what_a_pod_needs_to_train_is_allowed():
    assert list(problems_of(ALLOWED, ())) == []
    assert list(problems_of({}, ())) == []
    check_allowed(a_job(ALLOWED), ())


@pytest.mark.parametrize("name", GRANTED)
def test_what_opens_the_node_or_the_namespace_is_refused_until_the_administrator_allows_it(name):
    (sentence,) = problems_of(GRANTED[name], ())
    assert sentence.startswith(WHERE)
    assert f"add {name} to the chart's worker.allow" in sentence
    assert "\n" not in sentence
    others = GRANTABLE - {name}
    assert list(problems_of(GRANTED[name], others)) == [sentence]
    assert list(problems_of(GRANTED[name], {name})) == []


def test_init_containers_and_sidecars_get_no_more_than_the_worker():
    privileged = {"name": "x", "securityContext": {"privileged": True}}
    for template in (spec(initContainers=[privileged]), spec(containers=[privileged])):
        (sentence,) = problems_of(template, ())
        assert "add privileged to the chart's worker.allow" in sentence


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (spec(nodeName="n1"), "spec.nodeName: a job cannot set this; leave it out"),
        (spec(ephemeralContainers=[]), "ephemeralContainers: a job cannot set this"),
        ({"kind": "Pod"}, f"{WHERE}.kind: a job cannot set this"),
        ({"metadata": {"ownerReferences": []}}, "ownerReferences: a job cannot set this"),
    ],
)
def test_what_nobody_can_allow_is_refused(template, words):
    (sentence,) = problems_of(template, GRANTABLE)
    assert words in sentence


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": "x"}, f"{WHERE}.spec must be an object, found 'x'"),
        ({"spec": None}, f"{WHERE}.spec must be an object, found None"),
        (spec(containers={}), "containers must be a list, found {}"),
        (spec(containers=["worker"]), "containers[0] must be an object, found 'worker'"),
        (spec(containers=[{}]), "containers[0] has no name; give it one"),
        (spec(volumes=[{"emptyDir": {}}]), "volumes[0] has no name"),
        (spec(tolerations=7), "tolerations must be a list, found 7"),
        (spec(nodeSelector={"a": 1}), "nodeSelector must be an object of texts"),
        (spec(affinity={"nodeAffinity": []}), "nodeAffinity must be an object"),
        (worker(args="x"), "args must be a list of texts, found 'x'"),
        (worker(resources={"limits": "x"}), "limits must be an object, found 'x'"),
        (worker(env=[{"name": "A", "value": 1}]), "value must be text, found 1"),
        ({"metadata": {"labels": []}}, "labels must be an object of texts, found []"),
    ],
)
def test_what_is_no_pod_template_is_said_in_its_place(template, words):
    (sentence,) = problems_of(template, ())
    assert words in sentence


def test_a_volume_that_others_gave_the_pod_is_not_mounted_elsewhere():
    mount = worker(volumeMounts=[{"name": "host-0", "mountPath": "/x"}])
    (sentence,) = problems_of(mount, GRANTABLE)
    assert "mounts the volume 'host-0', which the template does not have" in sentence


ADMINISTRATORS = (
    {
        "spec": {
            "containers": [{"name": "worker", "command": ["heddle"]}],
            "volumes": [{"name": "datasets", "hostPath": {"path": "/srv"}}],
        }
    },
    {
        "spec": {
            "containers": [{"name": "fabric", "image": "fabric:1"}],
            "initContainers": [{"name": "tune", "image": "tune:1"}],
        }
    },
)


@pytest.mark.parametrize("template", [ALLOWED, {}, *ADMINISTRATORS, *GRANTED.values()])
def test_an_administrator_may_set_every_field(template):
    assert list(administrators_problems(template)) == []


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (spec(containers={"name": "worker"}), "spec.containers must be a list, found {'name'"),
        (spec(containers=[{"image": "a"}]), "spec.containers[0] has no name; give it one"),
        (spec(tolerations={"key": "a"}), "spec.tolerations must be a list, found {'key': 'a'}"),
        (spec(volumes=None), "spec.volumes must be a list, found None"),
        ({"metadata": "x"}, "metadata must be an object, found 'x'"),
        (spec(terminationGracePeriodSeconds=90_000), "must be from 0 to 86400, found 90000"),
    ],
)
def test_an_administrators_template_has_the_form_of_one(template, words):
    (sentence,) = administrators_problems(template)
    assert words in sentence
    assert sentence[0] != "."


@pytest.mark.parametrize(
    "template",
    [
        spec(volumes=[{"name": "datasets", "emptyDir": {}}]),
        spec(containers=[{"name": "worker"}, {"name": "fabric"}]),
        spec(initContainers=[{"name": "tune"}]),
    ],
)
def test_a_name_of_the_administrator_is_not_the_authors(template):
    with refused(InvalidJob, "Unsupported", "spec.worker.template") as error:
        check_allowed(a_job(template), GRANTABLE, ADMINISTRATORS)
    assert "administrator" in str(error.value)
    check_allowed(a_job(template), GRANTABLE)


def test_what_is_misshapen_is_said_before_any_name_is_looked_at():
    with refused(InvalidJob, "Unsupported", "spec.worker.template"):
        check_allowed(a_job(spec(containers=[7])), (), ADMINISTRATORS)


def test_other_names_and_the_worker_itself_are_the_authors():
    check_allowed(a_job(ALLOWED), (), ADMINISTRATORS)
    check_allowed(a_job(ALLOWED), (), ({}, {"spec": {"volumes": None}}))


def test_a_volume_has_one_source():
    two = {"emptyDir": {}, "secret": {"secretName": "s"}}
    for source, count in (({}, 0), (two, 2)):
        (sentence,) = problems_of(volume(**source), ())
        assert f"volumes[0] has {count} sources; give it one" in sentence


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_the_operators_own_labels_and_annotations_are_not_the_authors(kind):
    (sentence,) = problems_of({"metadata": {kind: {"heddle.dev/evictable": "true"}}}, GRANTABLE)
    assert sentence == (
        f"{WHERE}.metadata.{kind}: keys that begin with heddle.dev/ are the operator's, "
        "found 'heddle.dev/evictable'; leave it out"
    )


@pytest.mark.parametrize(("grace_s", "is_refused"), [(-1, 1), (0, 0), (86_400, 0), (86_401, 1)])
def test_a_grace_period_is_one_that_the_agent_takes(grace_s, is_refused):
    found = list(problems_of(spec(terminationGracePeriodSeconds=grace_s), ()))
    assert len(found) == is_refused
    assert all(f"must be from 0 to 86400, found {grace_s}" in sentence for sentence in found)


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_no_container_asks_for_gpus(kind):
    asked = {"resources": {kind: {"nvidia.com/gpu": 8}}}
    (sentence,) = problems_of(worker(**asked), ())
    assert sentence == (
        f"{WHERE}.spec.containers[0] asks for nvidia.com/gpu; the plan says how many it gets, "
        "leave it out"
    )
    for kind in ("containers", "initContainers"):
        (sentence,) = problems_of(spec(**{kind: [{"name": "x", **asked}]}), ())
        assert "the GPUs are the worker's" in sentence


def test_a_refused_job_is_one_sentence_with_its_name():
    with pytest.raises(InvalidJob) as error:
        check_allowed(a_job(spec(hostPID=True, hostNetwork=True)), ())
    assert str(error.value).startswith(f"tiny: {WHERE}.spec.hostPID: a job may not set hostPID")
    assert "\n" not in str(error.value)


def test_the_chart_knows_what_can_be_allowed():
    schema = json.loads((ROOT / "charts" / "heddle" / "values.schema.json").read_text())
    items = schema["properties"]["worker"]["properties"]["allow"]["items"]
    assert set(items["enum"]) == GRANTABLE
