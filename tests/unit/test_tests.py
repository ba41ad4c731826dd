"""What every test must do: assert something, and nothing about the time that it took."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(ROOT.rglob("test_*.py"))
UNIT = sorted((ROOT / "unit").rglob("*.py"))

# Calls that fail a test by themselves: of pytest, and helpers that begin like this.
FAILING = ("raises", "warns", "fail", "survives")
HELPERS = ("check", "assert", "expect")
WITHOUT_ASSERTION = {
    "test_docs.py::test_python_blocks_compile",  # compile() raises
}
CLOCKS = ("time", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "timeit")
PROMISES_OF_TIME = {
    "test_chat.py",  # a chat template is rendered within a number of seconds, or is given up
}


def called(node: ast.AST) -> Iterator[str]:
    """The names of the functions that are called in `node`, without what they belong to."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            function = child.func
            if isinstance(function, ast.Attribute):
                yield function.attr
            elif isinstance(function, ast.Name):
                yield function.id


def asserts(test: ast.AST) -> bool:
    if any(isinstance(child, ast.Assert) for child in ast.walk(test)):
        return True
    return any(name in FAILING or name.startswith(HELPERS) for name in called(test))


def without_assertion(tree: ast.AST) -> list[str]:
    """The names of the tests in a module that assert nothing."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not asserts(node)
    ]


def clocks_read(tree: ast.AST) -> list[str]:
    """The clocks that a module reads, and modules for timing that it imports."""
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name == "timeit" or (isinstance(node, ast.ImportFrom) and node.module in ("time", "timeit"))
    ]
    return imported + [
        child.func.attr
        for child in ast.walk(tree)
        if isinstance(child, ast.Call)
        and isinstance(child.func, ast.Attribute)
        and isinstance(child.func.value, ast.Name)
        and child.func.value.id in ("time", "timeit")
        and child.func.attr in CLOCKS
    ]


def test_every_test_asserts_something() -> None:
    found = {
        f"{path.name}::{name}"
        for path in FILES
        for name in without_assertion(ast.parse(path.read_text("utf-8")))
    }
    assert found == WITHOUT_ASSERTION


def test_no_unit_test_reads_a_clock() -> None:
    """Time depends on what else the machine does: count calls (tests/support/calls.py), or measure in
    benchmarks/."""
    found = {path.name for path in UNIT if clocks_read(ast.parse(path.read_text("utf-8")))}
    assert found == PROMISES_OF_TIME


@pytest.mark.parametrize(
    ("body", "empty"),
    [
        ("    run()", True),
        ("    assert run()", False),
        ("    with pytest.raises(ValueError):\n        run()", False),
        ("    check_all()", False),
    ],
)
def test_a_test_without_assertion_is_found(body: str, empty: bool) -> None:
    tree = ast.parse(f"def test_a():\n{body}\n\ndef other():\n    run()\n")
    assert without_assertion(tree) == (["test_a"] if empty else [])


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("import timeit", True),
        ("from time import monotonic", True),
        ("import time\nstart = time.perf_counter()", True),
        ("import time\ntime.sleep(1)", False),
    ],
)
def test_a_clock_is_found(text: str, clock: bool) -> None:
    assert bool(clocks_read(ast.parse(text))) == clock
