"""README and docs/README.md are true: their commands run, their links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from heddle.main import heddle
from heddle_operator.apis.heddlejob import load_job
from tests.cluster.__main__ import NodeType, cluster
from tests.cluster.assets import KUBERNETES_VERSION, Assets

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHART = yaml.safe_load((ROOT / "charts" / "heddle" / "Chart.yaml").read_text())
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "profiles").rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
    ]
)
HELM = Assets.of(os.environ).path("helm")
MAKE = (ROOT / "Makefile").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
SHOWN = [block.splitlines()[0].removeprefix("$ ") for block in blocks("console")]
OURS = [line for line in COMMANDS if line.startswith("heddle ")]


def invoked(command, line, *more):
    done = CliRunner().invoke(command, [*shlex.split(line)[1:], *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_first_screen_fits_and_the_page_is_short():
    lines = README.splitlines()
    assert len(lines) <= 180
    (first,) = re.findall(r"^kind: HeddleJob$", README, re.MULTILINE)
    assert lines.index(first) < 30


def test_the_job_is_the_first_example_and_a_job():
    (block,) = blocks("yaml")
    assert block == (ROOT / "manifests" / "examples" / "tiny.yaml").read_text()
    assert len(block.splitlines()) <= 15
    assert load_job(yaml.safe_load(block)).name == "tiny"


def test_commands_of_ours_run_in_order_as_they_are_written(tmp_path, monkeypatch):
    """The example file is where it is in a clone; a search is short; training is only checked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    assert [line.split()[1] for line in OURS] == ["plan", "train", "plan", "cost", "plan"]
    for line in OURS:
        line, _, target = line.partition(" > ")
        more = {"plan": ["--budget-evaluations", "100"], "train": ["--check"]}
        said = invoked(heddle, line, *more.get(line.split()[1], []))
        if target:
            json.loads(said)
            Path(target).write_text(said)


def test_the_plan_that_is_shown_is_the_one_that_the_command_prints():
    """To the row: only the seconds and the counts of the last line are of one machine."""
    (block,) = [block for block in blocks("console") if block.startswith("$ heddle plan")]
    line, *shown = block.splitlines()
    said = invoked(heddle, line.removeprefix("$ "), "--budget-evaluations", "3000").splitlines()
    assert [row.rstrip() for row in said[:-1]] == [row.rstrip() for row in shown[:-1]]
    assert said[-1].startswith("found in ")
    assert shown[-1].startswith("found in ")


def test_the_table_of_kubectl_has_the_columns_of_the_resource():
    (block,) = [block for block in blocks("console") if block.startswith("$ kubectl get")]
    crd = yaml.safe_load((ROOT / "manifests" / "crd" / "heddlejob.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    columns = [c["name"] for c in version["additionalPrinterColumns"] if not c.get("priority")]
    assert block.splitlines()[1].split() == ["NAME", *(name.upper() for name in columns)]


@pytest.mark.skipif(not HELM.exists(), reason="helm is built by: make kube-assets")
def test_helm_installs_the_images_that_make_builds():
    (made,) = [shlex.split(line) for line in COMMANDS if line.startswith("make image ")]
    repository = made[2].removeprefix("REPOSITORY=")
    images = {f"{repository}-{part}:{PROJECT['version']}" for part in ("operator", "worker")}
    pushed = {line.split()[2] for line in COMMANDS if line.startswith("docker push ")}
    (line,) = [line for line in COMMANDS if line.startswith("helm install ")]
    command = [str(HELM), "template", *shlex.split(line)[2:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bodies = yaml.safe_load_all(done.stdout)
    (operator,) = [body for body in bodies if body and body["kind"] == "Deployment"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    used = {container["image"], *re.findall(r"--worker-image=(\S+)", " ".join(container["args"]))}
    assert used == pushed == images


def known(words):
    """Whether a command that is too slow or too strong for a test is there to be called."""
    match words:
        case ["make", target, *settings]:
            names = {setting.partition("=")[0] for setting in settings}
            there = re.search(rf"^{re.escape(target)}:.*## ", MAKE, re.MULTILINE)
            return there and names <= set(re.findall(r"^([A-Z]+) \?=", MAKE, re.MULTILINE))
        case ["python", "-m", "tests.cluster", verb, *rest]:
            command = cluster.commands[verb]
            context = click.Context(command, info_name=verb)
            command.parse_args(context, rest)  # converts and checks each argument
            return True
        case ["pip", "install", where]:
            return re.fullmatch(r"\.\[(\w+)\]", where)[1] in PROJECT["optional-dependencies"]
        case ["kubectl", "apply", "-f", path]:
            return load_job(ROOT / path)
        case [".", ".venv/bin/activate"]:
            return "VENV ?= .venv" in MAKE
        case [path] if path.startswith("docs/"):
            return os.access(ROOT / path, os.X_OK)
        case ["docker", "push", _] | ["helm", "install", *_] | ["heddle", *_]:
            return True  # tests of their own
    return False


@pytest.mark.parametrize("line", [*COMMANDS, *SHOWN[1:]])
def test_every_command_is_one_that_there_is(line):
    assert known(shlex.split(line.partition(" > ")[0], comments=True))


def test_the_nodes_of_the_shown_run_can_be_asked_for():
    found = re.findall(r"\b(n\d:\d:[\w-]+)", README)
    assert len(found) == 4
    gpus = [NodeType().convert(text, None, None).gpus for text in found]
    assert sorted(gpus) == [1, 2, 2, 3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    gone = []
    for link in links:
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            gone.append(link)
        elif heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
            gone += [link] if heading not in anchors else []
    assert gone == []


def test_the_index_lists_every_document_and_a_module_for_each_package():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    names = {page.relative_to(ROOT / "docs").as_posix() for page in pages} - {"README.md"}
    assert not [name for name in sorted(names) if f"({name})" not in index]
    rows = [line.split("|") for line in index.splitlines() if line.startswith("| `")]
    first = {row[1].strip(" `"): re.findall("`([^`]+)`", row[4]) for row in rows}
    assert set(first) == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"}
    for package, modules in first.items():
        for module in modules:
            path = ROOT / package / module
            assert path.with_suffix(".py").exists() or path.is_dir(), path


def locked(name):
    """The version of a package in the lock."""
    return re.search(rf"^{name}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]


def test_supported_versions_are_those_of_the_project_the_chart_and_the_lock():
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in README.splitlines()]
    cells = {row[0]: row[1:] for row in rows if len(row) == 3}
    asked = {text for extra in PROJECT["optional-dependencies"].values() for text in extra}
    minors = [version.strip() for version in cells["Python"][0].split(",")]
    assert PROJECT["requires-python"] == f">={minors[0]},<3.{int(minors[-1][2:]) + 1}"
    assert CHART["kubeVersion"] == f">={cells['Kubernetes'][0].split()[0]}.0-0"
    assert cells["Kubernetes"][1] == KUBERNETES_VERSION
    assert f"torch>={cells['torch'][0].split()[0]}" in asked
    low, high = re.findall(r"[\d.]+", cells["DeepSpeed"][0])
    assert f"deepspeed>={low},<{high}" in asked
    assert (cells["torch"][1], cells["DeepSpeed"][1]) == (locked("torch"), locked("deepspeed"))


def test_the_citation_is_of_this_version():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (found["version"], found["license"]) == (PROJECT["version"], PROJECT["license"])
    assert found["abstract"] == PROJECT["description"]
    assert found["preferred-citation"]["title"].startswith("Heddle: ")
