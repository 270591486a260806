"""The worker reads numbers and speaks to CUDA at its device seam, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEAM = ("worker/device/", "worker/profile/")  # a profile measures the device itself
MOST_FILES, MOST_EXCEPTIONS = 6, 5
READS = {"item", "tolist", "cpu"}
EXCEPTIONS = {  # each with its reason
    "worker/engine/reference/training.py": "plain torch on the processor, which shares nothing",
    "worker/engine/step_summary.py": "the slots of the step are host tensors",
    "worker/model/experts/products.py": "the loop takes what torch cannot group, on a processor",
    "worker/weights/final_weights.py": "the table of digests is a host tensor",
    "worker/weights/one_folder.py": "the table of folders is a host tensor",
}


def touches(tree: ast.AST) -> bool:
    """Whether code reads a number of a tensor, or speaks to CUDA."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in READS and not node.args:
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda":
            return True
    return False


def test_numbers_are_read_and_cuda_is_called_below_the_seam_only():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "worker").rglob("*.py")
        if touches(ast.parse(path.read_text()))
    }
    below = {path for path in found if path.startswith(SEAM)}
    assert len(below) <= MOST_FILES
    assert found - below == set(EXCEPTIONS)
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS


def test_what_is_looked_for_is_found():
    assert touches(ast.parse("loss.sum().item()"))
    assert touches(ast.parse("torch.cuda.synchronize()"))
    assert not touches(ast.parse("device.host(loss)"))
