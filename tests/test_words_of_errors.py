"""Errors say which mistake and which field; only a front end speaks of its options."""

from __future__ import annotations

import ast
import re

from planner.errors import CODES
from tests.test_house import ROOT, SOURCES, name, parsed

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def test_an_error_of_several_mistakes_says_which_by_its_code():
    """The classes whose name does not say the mistake; checkpoints have words of their own."""
    of_several = re.compile(r"(Invalid\w+|WorkerError|OperatorError)$")
    silent, unlisted = [], []
    for path, tree in parsed(SOURCES, r"(Invalid\w+|WorkerError|OperatorError)\("):
        if path.is_relative_to(ROOT / "worker" / "checkpoint"):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not of_several.match(ast.unparse(node.func)):
                continue
            codes = [given.value for given in node.keywords if given.arg == "code"]
            where = f"{name(path)}:{node.lineno}"
            silent += [] if codes else [where]
            unlisted += [
                f"{where}: {code.value}"
                for code in codes
                if isinstance(code, ast.Constant) and code.value not in CODES
            ]
    assert not silent
    assert not unlisted


# What may write options: the worker's own command, and what starts it.
OF_ITS_OWN_COMMAND = {"worker/command.py", "worker/agent/fork_server_start.py"}


def said_in(tree: ast.AST) -> list[ast.Constant]:
    """The texts of a module without its docstrings."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
    ]


def test_a_lower_package_speaks_of_no_option_of_an_upper_one():
    """An error carries its field; `heddle` calls it by the option (`heddle.main.OPTIONS`)."""
    lower = [ROOT / package for package in ("planner", "migration", "worker")]
    assert not [
        f"{name(path)}:{text.lineno}: {OPTION.search(text.value)[0]}"
        for path, tree in parsed(SOURCES, OPTION.pattern)
        if any(path.is_relative_to(folder) for folder in lower)
        and name(path) not in OF_ITS_OWN_COMMAND
        for text in said_in(tree)
        if OPTION.search(text.value)
    ]


def test_an_error_of_weights_says_which_tensor_file_or_folder():
    silent = [
        f"{name(path)}:{node.lineno}"
        for path, tree in parsed(SOURCES, r"InvalidWeights\(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "InvalidWeights"
        and not {"code", "field"} <= {given.arg for given in node.keywords}
    ]
    assert not silent
