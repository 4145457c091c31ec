"""The built-in objectives by name, and objectives from the parameters of the terms."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeVar

from fedboost.fixedpoint import Int64
from fedboost.gbdt.objectives.classification import Logistic, Softmax
from fedboost.gbdt.objectives.counts import Gamma, Poisson, Tweedie
from fedboost.gbdt.objectives.objective import Loss, Slopes
from fedboost.gbdt.objectives.quantile import AbsoluteError, QuantileError
from fedboost.gbdt.objectives.ranking import RankNdcg, RankPairwise
from fedboost.gbdt.objectives.regression import PseudoHuber, SquaredError
from fedboost.gbdt.objectives.survival import AcceleratedFailureTime

_Any = TypeVar("_Any", bound=Slopes)


Kind = (
    type[Logistic]
    | type[SquaredError]
    | type[PseudoHuber]
    | type[AbsoluteError]
    | type[QuantileError]
    | type[Poisson]
    | type[Gamma]
    | type[Tweedie]
    | type[AcceleratedFailureTime]
    | type[Softmax]
    | type[RankNdcg]
    | type[RankPairwise]
)
_KINDS: tuple[Kind, ...] = (
    Logistic,
    SquaredError,
    PseudoHuber,
    AbsoluteError,
    QuantileError,
    Poisson,
    Gamma,
    Tweedie,
    AcceleratedFailureTime,
    Softmax,
    RankNdcg,
    RankPairwise,
)
LOSSES: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


def in_groups(loss: _Any, starts: Int64 | None) -> _Any:
    """The objective for rows of these groups, if it ranks rows; any other as it is."""
    return replace(loss, starts=starts) if isinstance(loss, RankNdcg | RankPairwise) else loss


def _parameters(name: str) -> list[Field[Any]]:
    """What an objective is compared by: a field that is not is no parameter."""
    return [one for one in fields(LOSSES[name]) if one.compare]


def parameters_of(name: str) -> dict[str, bool]:
    """The parameters of the objective of that name, and whether they must be given."""
    return {one.name: one.default is MISSING for one in _parameters(name)}


def loss_of(name: str, parameters: Mapping[str, object]) -> Loss:
    """The objective of that name, with those of the parameters that are its own and not None. LookupError,
    TypeError or ValueError if it lacks one, or for what is none."""
    own = {one.name: (one.type, parameters.get(one.name)) for one in _parameters(name)}
    kinds = {key: (kind, value) for key, (kind, value) in own.items() if value is not None}
    return LOSSES[name](**{key: number(kind, value) for key, (kind, value) in kinds.items()})


def number(kind: object, value: object) -> Any:
    """A parameter of this kind (int, float, bool, str) from how it was written. ValueError if it is none."""
    if kind is str:
        return str(value)
    if kind is bool:
        return bool(("False", "True", "0", "1").index(str(value)) % 2)  # in the terms and in XGBoost's file
    return int(str(value)) if kind is int else float(str(value).strip("[]"))  # XGBoost writes some as lists
