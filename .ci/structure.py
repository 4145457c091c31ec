"""Sizes and circles of the package: prints what exceeds its budget, and fails if anything does.

    python .ci/structure.py

A file has at most 900 lines. `tool.structure.budgets` in pyproject.toml has, for the files of each folder,
the most files, lines and statements of the syntax tree; `imports_in_functions` is for the whole package. A
budget is lowered freely, and a decision record raises it. No circle of imports: those inside functions and
those for type checkers count, too.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 900
LAZY = {"fedboost"}
"""Modules that import names for users, when those are asked for."""


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the generated ones."""
    paths = (p for p in (ROOT / "fedboost").rglob("*.py") if "v1" not in p.parts)
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def measured(paths: list[Path]) -> tuple[int, int, int]:
    """Files, lines and AST statements."""
    texts = [path.read_text() for path in paths]
    statements = sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text)))
    return len(texts), sum(text.count("\n") for text in texts), statements


def over_budget(known: dict[str, Path], budgets: dict[str, list[int]]) -> Iterator[str]:
    """Files that are too long, folders without a budget, and budgets that are exceeded."""
    for path in known.values():
        if (lines := path.read_text().count("\n")) > MAX_FILE_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_FILE_LINES} in a file"
    folders = {path.parent.relative_to(ROOT).as_posix() for path in known.values()}
    yield from (f"{folder}: has no budget" for folder in sorted(folders - budgets.keys()))
    for folder, limits in budgets.items():
        own = [path for path in known.values() if path.parent == ROOT / folder]
        for what, found, limit in zip(("files", "lines", "statements"), measured(own), limits, strict=True):
            if found > limit:
                yield f"{folder}: {found} {what}, its budget is {limit}"


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, wherever in it and for whatever."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            out.update(name if name in known else node.module for name in names)
    return out & known.keys()


def imports_in_functions(known: dict[str, Path]) -> int:
    """Import statements inside functions and methods."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    trees = (ast.parse(path.read_text()) for path in known.values())
    within = (
        node
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
    )
    return len({node for node in within if isinstance(node, ast.Import | ast.ImportFrom)})


def circles(known: dict[str, Path]) -> Iterator[str]:
    """Modules that import each other, directly or through others."""
    graph = {module: imports(path, known) - {module} - LAZY for module, path in known.items()}
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
    """Print what exceeds its budget, and each circle."""
    known = modules()
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["structure"]
    lines = [*over_budget(known, limits["budgets"])]
    if (found := imports_in_functions(known)) > limits["imports_in_functions"]:
        lines.append(f"{found} imports in functions, their budget is {limits['imports_in_functions']}")
    lines += (f"a circle of imports: {circle}" for circle in circles(known))
    files, length, statements = measured([*known.values()])
    print("\n".join(lines) or f"{files} files, {length:,} lines, {statements:,} statements: within budget")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
