"""Generates docs/terms.md from the fields of the terms."""

import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Noise
from fedboost.terms.reading import Frozen
from fedboost.terms.terms import Terms

_HEAD = """# Terms

<!-- Written by `make reference`: change the fields in fedboost/terms. -->

The terms of a session are the settings that all parties agree to, in one TOML file. `fedboost terms` drafts
this file from a table. Keys have the same names and defaults as in XGBoost, if XGBoost has them, except
`rounds`. All keys are at the top level of the file, except those in the tables `columns` and `noise`.

In Python, `fb.Terms(max_depth=3, ...)` and `terms.changed(max_depth=3)` accept the keys of the file. Values
are read by group, e.g. `terms.trees.max_depth`. The keys `objective`, `objective_params` and
`objective_package` are read as `terms.objective.name`, `.params` and `.package`.
"""
_KINDS = {int: "integer", float: "number", str: "string", SecretStr: "string", bool: "true or false"}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def page() -> str:
    """Return the whole page as Markdown."""
    own = {key: field for key, field in Terms.model_fields.items() if key not in Terms.groups()}
    parts = [_HEAD, section("The session as a whole", "", own)]
    for name, group in Terms.groups().items():
        parts.append(section(f"`terms.{name}`", _first_line(group), group.file_keys()))
    for name, table in (("columns", Schema), ("noise", Noise)):
        parts.append(section(f"Table `[{name}]`", _first_line(table), table.file_keys()))
    return "\n".join(parts)


def section(title: str, about: str, fields: Mapping[str, FieldInfo]) -> str:
    """Return a heading and a table with the type, default and description of each key."""
    head = f"## {title}\n\n" + (f"{about}\n\n" if about else "")
    rows = [_row(key, field) for key, field in fields.items()]
    return head + "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    about = " ".join((field.description or "").split())
    cells = (f"`{key}`", _type_of(field), _default_of(field), about)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _first_line(model: type[Frozen]) -> str:
    return (model.__doc__ or "").split("\n\n")[0].replace("\n    ", " ")


def _type_of(field: FieldInfo) -> str:
    limits = {
        name: f"{limit:.15g}" if isinstance(limit, float) else f"{limit}" for name, limit in _limits_of(field)
    }
    kind = _kind_of(field.annotation)
    if "ge" in limits and "le" in limits:
        return f"{kind} from {limits['ge']} to {limits['le']}"
    return ", ".join([kind, *(f"{_LIMITS[name]} {limit}" for name, limit in limits.items())])


def _limits_of(field: FieldInfo) -> Iterator[tuple[str, float]]:
    for name in _LIMITS:
        for each in field.metadata:
            if (limit := getattr(each, name, None)) is not None:
                yield name, limit


def _kind_of(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        kinds = list(dict.fromkeys(_kind_of(kind) for kind in inner if kind is not NoneType))
        return " or ".join(kinds)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        if inner[-1] is not Ellipsis:
            return f"{len(inner)} {_kind_of(inner[0])}s"
        return "list of " + {"string": "strings"}.get(
            kind := _kind_of(inner[0]), kind.replace("list of", "lists of")
        )
    if hasattr(annotation, "__metadata__"):
        return _kind_of(inner[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"table of {_kind_of(inner[1]).replace('list of', 'lists of').replace('table,', 'tables,')}"
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return "table, below"
    return _KINDS.get(annotation) or str(annotation.__name__).lower()


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or value == {} or isinstance(value, Frozen):
        return ""
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    text = f"{value:.15g}" if isinstance(value, float) else value
    return f"`{str(text).lower() if isinstance(value, bool) else text}`"
