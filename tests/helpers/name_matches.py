"""Where code of the package matches on the names of a table's rows."""

import ast
from pathlib import Path

import fedboost

PACKAGE = Path(fedboost.__file__).parent


def sources():
    """Files of the package to their text."""
    files = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(files) > 100
    return files


class Search:
    """Finds what compares with a name or row of a table, matches it, lists several of them, has a table by
    them, or gives one a name of its own to compare with."""

    def __init__(self, table, rows):
        self._table, self._rows = table, rows

    def places(self, source):
        """The places of a module that do: the name that it is assigned to in the module or in a class, or
        that of the function."""
        found = set()

        def visit(node, place):
            match node:
                case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) if place is None:
                    place = ast.unparse(target)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if place is None:
                    place = name
            if self._matches(node):
                found.add(place)
            for child in ast.iter_child_nodes(node):
                visit(child, place)

        visit(ast.parse(source), None)
        return found

    def files(self, but):
        """Files of the package, but for that of the table, to the places there."""
        found = {path: self.places(source) for path, source in sources().items() if path != but}
        return {path: places for path, places in found.items() if places}

    def _is_name(self, node):
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in self._rows

    def _is_row(self, node):
        """A row of the table by its name, or a fact of one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        of_table = isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(self._table)
        return of_table and self._is_name(node.slice)

    def _has_name(self, node):
        return any(self._is_name(part) or self._is_row(part) for part in ast.walk(node))

    def _matches(self, node):
        match node:
            case ast.Compare():
                lists = ast.List | ast.Tuple | ast.Set
                return any(
                    self._is_name(part)
                    or self._is_row(part)
                    or (isinstance(part, lists) and self._has_name(part))
                    for part in (node.left, *node.comparators)
                )
            case ast.MatchValue():
                return self._has_name(node)
            case ast.Set():
                return any(map(self._is_name, node.elts))
            case ast.List() | ast.Tuple():
                return sum(map(self._is_name, node.elts)) > 1
            case ast.Dict():
                return any(self._has_name(key) for key in node.keys if key is not None)
            case ast.Assign():
                return self._is_name(node.value) or self._is_row(node.value)
            case _:
                return False
