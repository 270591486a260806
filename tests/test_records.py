"""Records of more than five fields are built by keyword; tuples with names that are not say why."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_house import PYTHON, name, parsed

# Tuples with names of more than five fields, and why they are no dataclass.
NUMBA = "numba compiles tuples with names and no dataclasses"
MANY = "a pause or a start makes thousands of them, and a tuple is made faster"
AS_TUPLES = {
    "planner/estimator/objective.py: SearchLimits": NUMBA,
    "planner/estimator/tables.py: Tables": NUMBA,
    "planner/estimator/unplaced_plan.py: UnplacedPlan": NUMBA,
    "planner/estimator/workspace.py: Workspace": NUMBA,
    "planner/policy/features.py: ActionSpace": NUMBA,
    "planner/policy/partial_plans.py: PartialPlans": NUMBA,
    "planner/search/column_generation/network.py: Network": NUMBA,
    "planner/training/records.py: Decisions": "its columns are cut and joined as one",
    "planner/model/tensors.py: Tensor": MANY,
    "migration/balance.py: Run": MANY,
    "migration/transfer.py: Flow": MANY,
    "worker/checkpoint/manifest.py: SavedBox": "a row of a manifest, a list in its JSON",
    "tests/simulated_device/law.py: Row": "a row of a log, a list in its JSON",
}


def large_records() -> Iterator[tuple[str, ast.ClassDef]]:
    """(file and name, class) of classes of more than five fields that may break the rule."""
    for path, tree in parsed(PYTHON, r"^ *@dataclass(?!.*kw_only=True)|\(NamedTuple\):"):
        for node in ast.walk(tree):
            fields = isinstance(node, ast.ClassDef) and [
                part for part in node.body if isinstance(part, ast.AnnAssign)
            ]
            if fields and len(fields) > 5:
                yield f"{name(path)}: {node.name}", node


def test_records_of_more_than_five_fields_are_built_by_keyword():
    assert not [
        where
        for where, node in large_records()
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("dataclass") and "kw_only=True" not in decorator
    ]
    tuples = {
        where for where, node in large_records() if "NamedTuple" in map(ast.unparse, node.bases)
    }
    assert tuples == set(AS_TUPLES)
