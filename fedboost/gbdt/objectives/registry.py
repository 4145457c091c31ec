"""The objectives by name, and objectives from the parameters of the terms.

Promises: each objective is registered once, by `register`; the built-in ones are those of BUILT_IN in each
module here.
Refuses: classes that are no objectives, and names that are taken (TypeError, ValueError).
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from fedboost.gbdt.objectives import classification, counts, quantile, ranking, regression, survival
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {}
_Kind = TypeVar("_Kind", bound=type[Objective])


def register(kind: _Kind) -> _Kind:
    """Add an objective to those that terms can name; a decorator. Every party and the aggregator register it
    before they read terms. Its parameters are fields of the terms."""
    if not (isinstance(kind, type) and issubclass(kind, Objective) and is_dataclass(kind)):
        raise TypeError(f"{kind!r} is not a dataclass derived from Objective")
    if OBJECTIVES.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"objective {kind.name} is registered already")
    return kind


for _module in (classification, regression, quantile, counts, survival, ranking):
    for _kind in _module.BUILT_IN:
        register(_kind)


def names_of(kind: LabelKind) -> tuple[str, ...]:
    """The names of the objectives of one kind of labels."""
    return tuple(name for name, objective in OBJECTIVES.items() if objective.label_kind is kind)


def _parameters(name: str) -> list[Field[Any]]:
    """The fields that an objective is compared by: a field that is not compared is no parameter."""
    return [parameter for parameter in fields(OBJECTIVES[name]) if parameter.compare]  # type: ignore[arg-type]


def parameters_of(name: str) -> dict[str, bool]:
    """The parameters of the objective of that name, and whether they must be given."""
    return {parameter.name: parameter.default is MISSING for parameter in _parameters(name)}


def make_objective(name: str, parameters: Mapping[str, object]) -> Objective:
    """The objective of that name, with those of the parameters that are its own and not None. LookupError,
    TypeError or ValueError if it lacks one, or for a value that it cannot have."""
    types = {parameter.name: parameter.type for parameter in _parameters(name)}
    own = {key: parameters[key] for key in types if parameters.get(key) is not None}
    return OBJECTIVES[name](**{key: to_number(types[key], value) for key, value in own.items()})


def to_number(kind: object, value: object) -> Any:
    """A parameter of this kind (int, float, bool, str) from its text. ValueError if it is none."""
    if kind is str:
        return str(value)
    if kind is bool:
        return bool(("False", "True", "0", "1").index(str(value)) % 2)  # in the terms and in XGBoost's file
    return int(str(value)) if kind is int else float(str(value).strip("[]"))  # XGBoost writes some as lists
