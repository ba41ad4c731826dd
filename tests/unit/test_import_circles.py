"""No modules import each other in a circle, not even within functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import outrider

ROOT = Path(outrider.__file__).parent
COMPILED = ("_core", "_estimates", "_lookup", "_sampler")


def modules(root: Path) -> dict[str, Path]:
    """The Python files of a package, by module name."""
    names = {
        path: ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(node: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules that are imported at any time, so not under `if TYPE_CHECKING`. What a package has besides
    modules is its own; compiled modules import nothing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in known)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                if full in known:
                    yield full
                elif child.module in known and alias.name not in COMPILED:
                    yield child.module
        yield from imported(child, known)


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, in order; [] if there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for other in sorted(edges[name]):
            if found := search(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := search(name, []))), [])


def edges_of(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {
        name: {*imported(ast.parse(path.read_text("utf-8")), known)} - {name} for name, path in known.items()
    }


def test_no_circle() -> None:
    edges = edges_of(ROOT)
    assert len(edges) > 100
    assert sum(map(len, edges.values())) > 500
    assert circle(edges) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_circle_is_found(late: bool, tmp_path: Path) -> None:
    root = tmp_path / "pack"
    root.mkdir()
    (root / "__init__.py").touch()
    (root / "a.py").write_text("from pack import b\n")
    (root / "b.py").write_text("from pack.c import x\n")
    (root / "c.py").write_text("def x():\n    from pack.a import y\n" if late else "import pack.a\n")
    assert circle(edges_of(root)) == ["pack.a", "pack.b", "pack.c"]
    (root / "c.py").write_text("if TYPE_CHECKING:\n    import pack.a\n")
    assert circle(edges_of(root)) == []
