"""Sizes and circles of the package: prints what exceeds its limit, and fails if anything does.

    python .ci/structure.py

Limits: 900 lines a file, 60 a function, 300 lines and 15 attributes a class, no circle of imports. An
exception stands in REASONS with the sentence that gives its reason.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 300
MAX_CLASS_ATTRIBUTES = 15
REASONS = {
    "fedboost.gbdt.kernels.predict.predict_margins": "one compiled loop over rows, trees and levels",
    "fedboost.estimators.base.Federated.__init__": "scikit-learn wants each parameter in the signature",
    "fedboost.estimators.base.Federated": "scikit-learn wants an attribute for each parameter",
}
"""What may exceed a limit, and why."""


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the generated ones."""
    paths = (p for p in (ROOT / "fedboost").rglob("*.py") if "v1" not in p.parts)
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sizes(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """What exceeds a limit of size in a module: its name, and by how much."""
    text = path.read_text()
    if (lines := text.count("\n")) > MAX_FILE_LINES:
        yield module, f"{lines} lines, at most {MAX_FILE_LINES} in a file"
    for name, node in _definitions(ast.parse(text), module):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if not isinstance(node, ast.ClassDef):
            if lines > MAX_FUNCTION_LINES:
                yield name, f"{lines} lines, at most {MAX_FUNCTION_LINES} in a function"
            continue
        if lines > MAX_CLASS_LINES:
            yield name, f"{lines} lines, at most {MAX_CLASS_LINES} in a class"
        if (attributes := len(_attributes(node))) > MAX_CLASS_ATTRIBUTES:
            yield name, f"{attributes} attributes, at most {MAX_CLASS_ATTRIBUTES} in a class"


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _definitions(node: ast.AST, name: str) -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield f"{name}.{child.name}", child
            yield from _definitions(child, f"{name}.{child.name}")


def _attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that methods of a class set on self."""
    stores = (child for child in ast.walk(node) if isinstance(child, ast.Attribute))
    return {
        store.attr
        for store in stores
        if isinstance(store.ctx, ast.Store) and isinstance(store.value, ast.Name) and store.value.id == "self"
    }


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports when it is imported, without those for type
    checkers."""
    out: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(child, ast.ImportFrom) and child.module:
                names = (f"{child.module}.{alias.name}" for alias in child.names)
                out.update(name if name in known else child.module for name in names)
            visit(child)

    visit(ast.parse(path.read_text()))
    return out & known.keys()


def circles(known: dict[str, Path]) -> Iterator[str]:
    """Modules that import each other, directly or through others."""
    graph = {module: imports(path, known) - {module} for module, path in known.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> Iterator[str]:
        if module in trail:
            yield " -> ".join((*trail[trail.index(module) :], module))
        elif module not in done:
            for target in sorted(graph[module]):
                yield from visit(target, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        yield from visit(module, ())


def main() -> int:
    """Print what exceeds its limit."""
    known = modules()
    faults = [pair for module, path in known.items() for pair in sizes(module, path)]
    lines = [f"{name}: {fault}" for name, fault in faults if name not in REASONS]
    lines += [f"{name}: within its limit, take it out of REASONS" for name in REASONS.keys() - dict(faults)]
    lines += [f"a circle of imports: {circle}" for circle in circles(known)]
    print("\n".join(lines) or f"{len(known)} modules within their limits, {len(REASONS)} with a reason")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
