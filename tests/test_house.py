"""The house keeps its own rules: sizes, names, words, imports, and nothing of one machine in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

import planner
from benchmarks.pages import faults
from tests.e2e.image.image_locks import OPERATOR, WORKER, lock_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("planner", "migration", "worker", "heddle_operator", "heddle")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "docs", "manifests", "charts", "profiles", ".ci")
MAX_LINES = 400
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)(_|$)")
OF_ONE_MACHINE = re.compile(
    r"/(?:work|root|home|Users)/\w+|pypi\.org|pythonhosted|--(?:extra-)?index-url|--find-links"
)

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PYTHON = sorted(
    [*SOURCES, *(p for name in ("tests", "benchmarks") for p in (ROOT / name).rglob("*.py"))]
)
TEXTS = sorted(
    path
    for path in [*ROOT.iterdir(), *(p for name in FOLDERS for p in (ROOT / name).rglob("*"))]
    if path.is_file()
    and path.name != ".git"
    and "__pycache__" not in path.parts
    and path.suffix not in {".pyc", ".png", ".safetensors"}
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(paths: Iterable[Path], mark: str) -> Iterator[tuple[Path, ast.Module]]:
    """The files with a line that matches; to parse all of them takes many seconds."""
    for path in paths:
        text = path.read_text()
        if re.search(mark, text, re.MULTILINE):
            yield path, ast.parse(text)


def public_classes() -> dict[str, str]:
    """{class: its file} of all packages."""
    return {
        node.name: name(path)
        for path, tree in parsed(SOURCES, r"^class [A-Z]")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def test_no_file_is_longer_than_400_lines():
    lengths = {name(path): len(path.read_text().splitlines()) for path in PYTHON}
    assert not {path: length for path, length in lengths.items() if length > MAX_LINES}


def test_no_folder_holds_more_than_15_modules():
    folders = Counter(name(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert not {folder: number for folder, number in folders.items() if number > 15}


def test_the_first_line_of_a_module_is_its_purpose():
    firsts = {name(path): path.read_text().partition("\n")[0] for path in PYTHON}
    silent = {p for p, first in firsts.items() if first[:3] != '"""' or len(first.split()) < 3}
    assert not {path for path in silent if (ROOT / path).stat().st_size}


def test_names_say_what_a_module_or_class_is():
    assert not [name(path) for path in SOURCES if BANNED_NAMES.search(path.stem)]
    assert not [c for c in public_classes() if c.endswith(("Manager", "Helper", "Utils"))]


def starred(tree: ast.AST) -> list[ast.expr]:
    """What is unpacked into the arguments of calls."""
    return [
        given.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for given in node.args
        if isinstance(given, ast.Starred)
    ]


def test_no_call_hides_its_arguments_in_a_starred_tuple():
    assert not [
        f"{name(path)}:{given.lineno}"
        for path, tree in parsed(PYTHON, r"(?<!\*)\*\(")
        for given in starred(tree)
        if isinstance(given, ast.Tuple)
    ]


def test_no_function_names_a_tuple_only_to_star_it_in_one_call():
    hidden = set()
    for path, tree in parsed(SOURCES, r"[(,\s]\*\w"):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
            reads = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
            tuples = {
                ast.unparse(node.targets[0])
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            }
            once = {given.id for given in starred(function) if isinstance(given, ast.Name)}
            hidden |= {(name(path), one) for one in once & tuples if reads[one] == 1}
    assert not hidden


def test_a_function_takes_at_most_one_truth_value_by_its_place():
    """Commands get theirs from click; numba knows no argument that is given by name alone."""
    assert not [
        f"{name(path)}:{node.lineno}: {node.name}"
        for path, tree in parsed(SOURCES, r": bool\b[\s\S]*: bool\b")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
        if sum(
            one.annotation is not None and ast.unparse(one.annotation) == "bool"
            for one in node.args.args
        )
        > 1
    ]


def test_unit_tests_mirror_the_sources():
    unit = ROOT / "tests" / "unit"
    tests = [path.relative_to(unit) for path in unit.rglob("test_*.py")]
    twins = {str(test): test.with_name(test.name.removeprefix("test_")) for test in tests}
    assert twins
    assert not {test: twin for test, twin in twins.items() if not (ROOT / twin).exists()}


def glossary() -> list[str]:
    """The terms that docs/glossary.md explains; those of one row count apart."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    firsts = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    rows = [first for first in firsts if first != "term" and not first.startswith("---")]
    return [term.strip(" `") for row in rows for term in row.split(",")]


def test_the_glossary_explains_each_term_once_and_no_more_than_a_reader_learns():
    terms = glossary()
    assert len(terms) == len({term.lower() for term in terms})
    assert 60 <= len(terms) <= 120


def test_every_term_of_the_glossary_is_used_outside_of_it():
    documents = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "manifests").rglob("*"),
    ]
    paths = [path for path in [*documents, *SOURCES] if path.is_file()]
    texts = [path.read_text() for path in paths if path.name != "glossary.md"]
    read = re.sub(r"[\s#]+", " ", " ".join(texts)).lower()
    assert not [term for term in glossary() if term.lower() not in read]


def test_every_file_that_a_document_names_exists():
    """A path is given from the root, or from the package that a table is about."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    roots = [ROOT, *(ROOT / package for package in PACKAGES)]
    named = {
        (name(document), path)
        for document in documents
        if document.name != "CHANGELOG.md"
        for path in re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", document.read_text())
    }
    assert named
    gone = {
        (document, path)
        for document, path in named
        if not any((root / path).exists() or (root / f"{path}.py").exists() for root in roots)
    }
    assert not gone


def test_pages_of_results_say_of_which_code_they_are_and_name_nothing_that_is_gone():
    assert faults() == []


def test_the_architecture_has_a_row_for_each_folder_of_the_packages():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for package in ("planner", "worker", "heddle_operator", "heddle"):
        table = text.partition(f"| `{package}/` |")[2].partition("\n\n")[0]
        rows = {word for row in table.splitlines() for word in re.findall("`(\\w+)`", row)}
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders <= rows, (package, folders - rows)


def test_the_planner_exports_the_names_that_the_architecture_lists_and_no_other_package_any():
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = text.partition("**Public names.**")[2].partition(". The other four")[0]
    assert set(re.findall(r"`(\w+)`", listed)) - {"planner", "__init__"} == set(planner.__all__)
    for package in set(PACKAGES) - {"planner"}:
        (docstring,) = ast.parse((ROOT / package / "__init__.py").read_text()).body
        assert isinstance(docstring, ast.Expr)


def test_no_file_holds_a_path_of_one_machine_or_an_index_address():
    found = {
        name(path): match.group()
        for path in TEXTS
        if path != Path(__file__)
        for match in OF_ONE_MACHINE.finditer(path.read_text())
    }
    assert not found


def test_the_lock_pins_every_package_by_hash():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if re.match(r"^[a-z0-9]", line)]
    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)


def test_the_lock_holds_every_dependency_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE))
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    asked = {re.match(r"[\w-]+", name)[0].lower() for group in groups for name in group}
    assert "torch" in asked
    assert not asked - locked - {"heddle"}, "run `uv pip compile` as CONTRIBUTING.md says"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_make_commands_in_the_documents_are_targets(document):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    words = (ROOT / document).read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", words, re.MULTILINE))
    assert named
    assert not named - targets


def test_ci_runs_lint_and_every_test_but_the_campaign_of_faults():
    """What `make test` ignores is what another part of CI runs."""
    script = (ROOT / ".ci" / "run").read_text()
    parts = set(re.findall(r"parts\+?=\(([^)]*)\)", script)[0].split()) | {"test-harness"}
    assert parts == {"check", "test", "test-system", "test-cluster", "test-harness"}
    assert "parts+=(test-harness)" in script
    recipes = {
        part: subprocess.run(
            ["make", "-n", part], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for part in parts - {"check"}
    }
    ignored = set(re.findall(r"--ignore=(\S+)", recipes["test"]))
    assert ignored == set(re.findall(r"--ignore=(\S+)", recipes["test-system"]))
    assert '-m "not system"' in recipes["test"]
    assert " -m system " in recipes["test-system"]
    run = {path for text in recipes.values() for path in re.findall(r" (tests/\S+)", text)}
    assert ignored - run == {"tests/distributed/faults/test_kills.py"}


# Modules of the worker that the operator's image needs, and why.
OPERATOR_IMPORTS = {
    "worker.contract",  # what it and the agents say to each other
    "worker.contract_version",
    "worker.stall",  # how long a change of plan takes, and why
    "worker.gpu_wire",  # by which plans are priced
    "worker.columns",  # how a directive is packed
    "worker.http_limits",
    "worker.training_settings",  # a section of a HeddleJob
    "worker.trainable",  # which models a job may name
    "worker.model.describe",  # asks a user's entry point for its config.json, in another process
    "worker.log_lines",  # the form of a log line
}


def test_the_operator_imports_of_the_worker_what_this_list_names():
    found = set()
    for _, tree in parsed((ROOT / "heddle_operator").rglob("*.py"), r"^ *(from|import) worker\b"):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name for name in names if name.split(".")[0] == "worker"}
    assert found == OPERATOR_IMPORTS


def test_import_contracts_hold():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_guide_builds_the_image_that_the_chart_asks_for():
    chart = (ROOT / "charts/heddle/Chart.yaml").read_text()
    version = re.search(r"^appVersion: (\S+)$", chart, re.MULTILINE)
    assert version is not None
    guide = (ROOT / "docs/operate.md").read_text()
    assert f"make image TAG={version[1]} " in guide


def test_the_image_that_make_builds_is_the_one_that_the_chart_pulls():
    chart = (ROOT / "charts/heddle/Chart.yaml").read_text()
    version = re.search(r"^appVersion: (\S+)$", chart, re.MULTILINE)
    assert version is not None
    recipe = subprocess.run(["make", "-n", "image"], cwd=ROOT, capture_output=True, text=True)
    values = yaml.safe_load((ROOT / "charts/heddle/values.yaml").read_text())
    for target, image in (("operator", values["image"]), ("worker", values["worker"]["image"])):
        name = f"{image['repository']}:{image['tag'] or version[1]}"
        assert f"--target {target} --tag {name} ." in recipe.stdout


@pytest.mark.parametrize(
    ("lock", "never"),
    [(OPERATOR, "torch|deepspeed|nvidia-"), (WORKER, "pytest|moto|mypy|flask|hatchling")],
    ids=["operator", "worker"],
)
def test_an_images_lock_is_the_part_of_the_lock_that_it_needs(lock, never):
    """`python -m tests.e2e.image.image_locks` writes both anew."""
    text = lock.read_text(encoding="utf-8")
    assert text == lock_of(lock)
    assert not re.search(rf"^({never})", text, re.MULTILINE)


def test_all_that_the_images_copy_reaches_their_build():
    copied = {
        word
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    known = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert copied == known
    assert all((ROOT / path).exists() for path in copied)


def test_text_files_are_utf_8_whatever_the_locale_says():
    calls = {
        f"{name(path)}:{node.lineno}"
        for path, tree in parsed(SOURCES, r"\.(read|write)_text\(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and "encoding" not in {keyword.arg for keyword in node.keywords}
    }
    assert not calls, "name encoding='utf-8'"
