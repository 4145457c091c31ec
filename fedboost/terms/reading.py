"""Settings as people write them: types of their values, and a line about the first fault.

Promises: the first fault becomes a ConfigError of one line that names the key as the file has it.
Refuses: unknown keys (naming the nearest known one), and texts or true and false where numbers belong.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fedboost.errors import ConfigError, quoted
from fedboost.terms.other_names import WHY_NOT, name_here

MAX_CHARS = 100
"""Characters of a key or a value in an error."""
MAX_FEATURES = 1 << 16
MAX_NEAR = 256
"""Known names that are compared with an unknown one: each comparison takes 0.5 ms."""
_ENTRIES_AT_ONCE = 1 << 10
M = TypeVar("M", bound="Frozen")
T = TypeVar("T")
Location = tuple[int | str, ...]

Name = Annotated[str, Field(min_length=1, max_length=256)]
Several = Annotated[tuple[T, ...], FailFast()]
"""A list, validated up to the first fault: each takes half a kilobyte, and terms from outside could have
millions."""


def _validate_in_parts(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a table part by part and stop at the first part with a fault, as FailFast does for lists."""
    if not isinstance(value, dict) or not _ENTRIES_AT_ONCE < len(value) <= MAX_FEATURES:
        return validate(value)
    entries = iter(value.items())
    out: dict[str, Any] = {}
    while part := dict(islice(entries, _ENTRIES_AT_ONCE)):
        out |= validate(part)
    return out


Table = Annotated[Mapping[Name, T], WrapValidator(_validate_in_parts)]
"""A mapping by name, validated up to the first faults."""

_SHOULD_BE = {
    "tuple_type": "should be a list, in brackets",
    "dict_type": "should be a table, { key = value }",
    "mapping_type": "should be a table, { key = value }",
    "model_type": "should be a table, { key = value }",
    "path_type": "should be a path, in quotes",
}
"""Expectations in words of TOML, by the type of a fault."""


class Frozen(BaseModel):
    """Base of what users write: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        """The keys as a file has them, and the field of each."""
        return cls.model_fields

    @classmethod
    def location_in_file(cls, location: Location) -> Location:
        """Location of a fault in the file, from that in the object."""
        return location


class Submitted(Frozen):
    """Base of tables from outside, with any number of keys."""

    @model_validator(mode="before")
    @classmethod
    def _drop_most_unknown(cls, values: Any) -> Any:
        """Keep one unknown key of many: each is a fault of its own, and one is reported."""
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields):
            return values
        known = {name: value for name, value in values.items() if name in cls.model_fields}
        unknown = next(name for name in values if name not in cls.model_fields)
        return known | {unknown: values[unknown]}


def require_known(value: str, known: Iterable[str], what: str) -> str:
    """Return the value. Raise ValueError with the known values if it is not one of them."""
    names = list(known)
    if value not in names:
        raise ValueError(unknown(value, names, names, what))
    return value


def unknown(value: str, near: Iterable[str], known: Iterable[str], what: str) -> str:
    """A line about an unknown value."""
    return f"unknown {what} {value[:MAX_CHARS]!r}{nearest(value, near)}; known: {', '.join(known)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)', or nothing if no known word is near, of the first MAX_NEAR."""
    names, word = [name[:MAX_CHARS] for name in islice(known, MAX_NEAR)], word[:MAX_CHARS]
    here = name_here(word, names)
    close = [here] if here else difflib.get_close_matches(word, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def setting_hint(word: str, settings: Collection[str]) -> str:
    """The nearest of the settings to an unknown one, or why there is none; empty if nobody knows it."""
    if word in WHY_NOT and name_here(word, settings) is None:
        return f": {WHY_NOT[word]}"
    return nearest(word, settings)


def read_model(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """Validate values from a user; the first fault becomes a ConfigError of one line."""
    try:
        read = model.model_validate(values)
    except ValidationError as error:
        raise first_fault(model, error, source) from None
    if no_number := _no_number(model, values):
        raise ConfigError(f"{source}: {quoted(no_number)}")
    return read


def first_fault(model: type[Frozen], error: ValidationError, source: str) -> ConfigError:
    """A line about a fault of values for this model."""
    faults = error.errors(include_url=False)
    # A key that is missing is often one that is misspelt: the unknown one tells more.
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    location = [str(part) for part in model.location_in_file(fault["loc"])]
    owner = model
    for part in location[:-1]:
        owner = _table_of(owner.file_keys().get(part)) or owner
    key = ".".join(location)[:MAX_CHARS]
    if fault["type"] == "extra_forbidden":
        tables = ((name, _table_of(field)) for name, field in model.file_keys().items())
        homes = (name for name, table in tables if table is not None and key in table.file_keys())
        home = next(homes, None) if len(location) == 1 else None
        known = [*owner.file_keys(), *(_keys_of_tables(owner) if len(location) == 1 else ())]
        hint = f": it belongs under [{home}]" if home else setting_hint(location[-1], known)
        if len(location) > 1 and location[-1] in model.file_keys():
            hint = ": it belongs at the top of the file, above all tables"
        message = f"unknown key {key!r}{hint}"
    elif fault["type"] == "missing":
        message = f"key {key!r} is missing"
    elif fault["type"] == "value_error":
        message = f"{key + ': ' if key else ''}{fault['ctx']['error']}"
    else:
        got = fault["input"]
        shown = f", got {got!r}"[:MAX_CHARS] if isinstance(got, (str, int, float, bool)) else ""
        expected = _SHOULD_BE.get(fault["type"], fault["msg"])
        message = f"{key}: {expected[0].lower()}{expected[1:]}{shown}"
    return ConfigError(f"{source}: {quoted(message)}")


def _keys_of_tables(model: type[Frozen]) -> Iterator[str]:
    """The keys of the tables of a model, as `table.key`."""
    for name, field in model.file_keys().items():
        if table := _table_of(field):
            yield from (f"{name}.{key}" for key in table.file_keys())


def _table_of(field: FieldInfo | None) -> type[Frozen] | None:
    """The model of a field that is a table of its own."""
    annotation = None if field is None else field.annotation
    kinds = (annotation, *get_args(annotation))  # `X | None` has X in it
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Frozen)), None)


def _no_number(model: type[Frozen], values: Mapping[str, Any]) -> str | None:
    """A line about the first value of a key for numbers that is true, false or text, which pydantic would
    take for a number; None if there is none."""
    for key, value in values.items():
        field = model.file_keys()[key]
        kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
        if isinstance(value, (bool, str)) and all(kind in (int, float) for kind in kinds):
            return f"{key}: should be a number, got {value!r}"[:MAX_CHARS]
        table = _table_of(field) if isinstance(value, Mapping) else None
        if table is not None and (fault := _no_number(table, value)):
            return f"{key}.{fault}"
    return None
