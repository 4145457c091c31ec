"""docs/errors.md, from every place of the package that makes an error."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fedboost import errors

PACKAGE = Path(errors.__file__).parent
HEAD = """# Errors

Every error of fedboost has a code. It stays the same when its sentence is reworded: match `error.code` in
Python. The command line prints the sentence and exits with code 2; an aggregator sends code and sentence.
`…` is a value, such as a name, a file or a number.

| code | error | sentence |
|---|---|---|
"""


def kinds() -> set[str]:
    """Names of the classes of errors, with those of modules beside errors.py."""
    found = {name for name, value in vars(errors).items() if _is_error(value)}
    return found | {"BadRow"}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.FedboostError)


def sentence(node: ast.expr) -> str:
    """The text of an expression, with … for what is not in the code."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(sentence(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return sentence(node.left) + sentence(node.right)
    return "…"


def made() -> Iterator[tuple[str, str, str]]:
    """Code, class and sentence of each error that the package makes with a code of its own."""
    known = kinds()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                code, *rest = node.args
                if isinstance(code, ast.Constant) and rest:
                    yield str(code.value), node.func.id, sentence(rest[0])


def page() -> str:
    """The page: a row for each code, its sentences one below the other."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for code, kind, text in made():
        found[code].add((kind, text))
    rows = []
    for code, uses in sorted(found.items()):
        classes = ", ".join(sorted({f"`{kind}`" for kind, _ in uses}))
        texts = "<br>".join(sorted({text.replace("|", "\\|").replace("<", "&lt;") for _, text in uses}))
        rows.append(f"| `{code}` | {classes} | {texts} |")
    return HEAD + "\n".join(rows) + "\n"
