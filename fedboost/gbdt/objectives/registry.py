"""The objectives by name, and objectives from the parameters of the terms.

Each objective is registered once, by `register`; `built_in.BUILT_IN` has the built-in ones. Classes that are
not objectives raise TypeError; names already taken raise ValueError.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from fedboost.errors import ConfigError, Refused
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.built_in import BUILT_IN
from fedboost.gbdt.objectives.objective import HasGradients, LabelKind, Objective

OBJECTIVES: dict[str, type[Objective]] = {}
_Kind = TypeVar("_Kind", bound=type[Objective])


def register(kind: _Kind) -> _Kind:
    """Add an objective that terms can name; a decorator. Every party and the aggregator must register it
    before reading terms. Its parameters are fields of the terms."""
    if not (isinstance(kind, type) and issubclass(kind, Objective) and is_dataclass(kind)):
        raise TypeError(f"{kind!r} is not a dataclass derived from Objective")
    if OBJECTIVES.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"objective {kind.name} is already registered")
    return kind


for _kind in BUILT_IN:
    register(_kind)


def names_of(kind: LabelKind) -> tuple[str, ...]:
    return tuple(name for name, objective in OBJECTIVES.items() if objective.label_kind is kind)


def _parameters(name: str) -> list[Field[Any]]:
    """The fields that an objective is compared by; fields that are not compared are not parameters."""
    return [parameter for parameter in fields(OBJECTIVES[name]) if parameter.compare]  # type: ignore[arg-type]


def parameters_of(name: str) -> dict[str, bool]:
    """The parameters of the objective of that name, and whether they are required."""
    return {parameter.name: parameter.default is MISSING for parameter in _parameters(name)}


def make_objective(name: str, parameters: Mapping[str, object]) -> Objective:
    """The objective of that name, with those of the parameters that it has and that are not None.
    LookupError, TypeError or ValueError if one is missing or has an invalid value."""
    types = {parameter.name: parameter.type for parameter in _parameters(name)}
    own = {key: parameters[key] for key in types if parameters.get(key) is not None}
    return OBJECTIVES[name](**{key: to_number(types[key], value) for key, value in own.items()})


def to_number(kind: object, value: object) -> Any:
    """Parse a parameter of this kind (int, float, bool, str). ValueError if the text is invalid."""
    if kind is str:
        return str(value)
    if kind is bool:
        return bool(
            ("False", "True", "0", "1").index(str(value)) % 2
        )  # as in the terms and in XGBoost's file
    return int(str(value)) if kind is int else float(str(value).strip("[]"))  # XGBoost writes some as lists


# ---- Objectives of packages: classes that packages installed here offer as entry points -----------------
# Promises: only names that are not registered are looked up, and only code installed here under GROUP is
# loaded, regardless of the terms: code never travels. ConfigError, in one line, for names that no package
# offers here, or several; for parameters that a class does not take; for classes that are not an
# `objective.Objective`, or predict differently than their xgboost_equivalent. At a party, Refused for
# gradients that cannot be summed.


GROUP = "fedboost.objectives"
_KINDS: dict[object, type] = {"int": int, "float": float, "str": str}
"""Annotations that a module stores as text."""


def names() -> list[str]:
    return sorted({entry_point.name for entry_point in entry_points(group=GROUP)})


def package_of(name: str) -> str:
    """The package that offers an objective here, as distribution==version."""
    package = _entry_point(name).dist
    return f"{package.name}=={package.version}"


def parameters(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """The parameters as the class takes them, converted to float where it has one."""
    kind = _class(name)
    own = {field.name: _KINDS.get(field.type, field.type) for field in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in own:
            raise ConfigError(
                "objective-parameter-unknown",
                f"{name} has no parameter {key!r}; it takes {', '.join(own) or 'none'}",
            )
    out = {}
    for key, value in values.items():
        try:
            out[key] = to_number(own[key], value)
        except ValueError:
            what = "a whole number" if own[key] is int else "a number"
            raise ConfigError(
                "objective-parameter-invalid", f"{name}: parameter {key} takes {what}, not {value!r}"
            ) from None
    return out


def objective(name: str, values: Mapping[str, object]) -> Objective:
    """The objective that a package installed here offers, with these parameters."""
    kind, own = _class(name), parameters(name, values)
    if kind.__abstractmethods__:
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(
            "objective-incomplete", f"{name} of {package_of(name)} is not an objective: it lacks {lacking}"
        )
    try:
        made = kind(**own)
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise ConfigError("objective-not-created", f"{name} of {package_of(name)}: {_line(error)}") from None
    try:
        fault = _fault(made, name)
    except Exception as error:  # noqa: BLE001 - as above
        fault = _line(error)
    if fault:
        raise ConfigError("objective-invalid", f"{name} of {package_of(name)} is not an objective: {fault}")
    return made


def gradients(
    loss: HasGradients, name: str, margin: Float64, label: Float32, weight: Float32
) -> tuple[Float64, Float64]:
    """The gradients of a package's objective. Refused if its code fails, or if they cannot be summed."""
    try:
        gradient, hessian = (
            np.ascontiguousarray(v, np.float64) for v in loss.gradients(margin, label, weight)
        )
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise Refused("objective-failed", f"objective {name} failed at its rows", _line(error)) from None
    sound = gradient.shape == hessian.shape == margin.shape and bool((hessian >= 0.0).all())
    if not sound or not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise Refused(
            "objective-gradients-invalid",
            f"objective {name} returned invalid gradients: a wrong shape, not finite, or a hessian below 0",
        )
    return gradient, hessian


def check_objective(loss: Objective, label: Float32) -> None:
    """Check an objective, for the tests of its package.

    ConfigError unless its gradients at these labels, float32 [N] or [2, N], depend on single rows, are
    finite, within its bounds, with hessians of at least 0, and proportional to the weights."""
    rows = label.shape[-1]
    margin = np.linspace(-4.0, 4.0, rows)
    ones, halves = np.ones(rows, np.float32), np.full(rows, 0.5, np.float32)
    whole = loss.gradients(margin, label, ones)
    reversed_rows = loss.gradients(margin[::-1].copy(), label[..., ::-1].copy(), ones)
    half = loss.gradients(margin, label, halves)
    for what, values, turned, light in zip(("gradient", "hessian"), whole, reversed_rows, half, strict=True):
        if values.dtype != np.float64 or values.shape != margin.shape:
            raise ConfigError(
                "objective-shape",
                f"the {what} is {values.dtype} {list(values.shape)}, not float64 {[rows]}",
            )
        if not np.isfinite(values).all():
            raise ConfigError(
                "objective-not-finite",
                f"the {what} of row {int(np.argmin(np.isfinite(values)))} is not finite",
            )
        if (values != turned[::-1]).any():
            raise ConfigError("objective-rows", f"the {what} of a row depends on other rows or their order")
        if (light != 0.5 * values).any():
            raise ConfigError("objective-weight", f"the {what} is not proportional to the weight")
    if (whole[1] < 0.0).any():
        raise ConfigError("objective-hessian", f"the hessian of row {int(np.argmin(whole[1]))} is below 0")
    for what, values, bound in zip(("gradient", "hessian"), whole, loss.bounds or (), strict=False):
        if np.abs(values).max() > 2.0**bound:
            raise ConfigError("objective-bound", f"a {what} is {np.abs(values).max():g}, above 2**{bound}")


def _entry_point(name: str) -> Any:
    matching = [entry_point for entry_point in entry_points(group=GROUP) if entry_point.name == name]
    if len(matching) != 1:
        packages = ", ".join(
            sorted(f"{entry_point.dist.name}" for entry_point in matching if entry_point.dist)
        )
        raise ConfigError(
            "objective-not-installed",
            f"objective {name!r} is offered by several packages here: {packages}; keep one"
            if matching
            else f"objective {name!r} is offered by no package here (entry points of group {GROUP})",
        )
    return matching[0]


def _class(name: str) -> type[Objective]:
    entry_point = _entry_point(name)
    try:
        kind = entry_point.load()
    except Exception as error:  # noqa: BLE001 - importing runs the package's own code
        raise ConfigError(
            "objective-not-loaded", f"{name} of {package_of(name)} cannot be loaded: {_line(error)}"
        ) from None
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ConfigError(
            "objective-invalid", f"{name} of {package_of(name)} is not an objective: it is not a dataclass"
        )
    if not issubclass(kind, Objective):
        raise ConfigError(
            "objective-invalid",
            f"{name} of {package_of(name)} is not an objective: it is not derived from Objective",
        )
    return kind


def _fault(made: Objective, name: str) -> str:
    """Why this is not an objective of that name; empty if it is one."""
    if made.name != name:
        return f"it calls itself {made.name!r}"
    if made.outputs != 1:
        return "it has several outputs"
    equivalent = made.xgboost_equivalent
    rankings = names_of(LabelKind.RELEVANCE)
    single = [known for known in OBJECTIVES if known not in rankings]
    if equivalent.name not in single or equivalent.xgboost_equivalent is not equivalent:
        return f"its xgboost_equivalent is {equivalent.name!r}, which is not one of {', '.join(single)}"
    margin: Float64 = np.linspace(-5.0, 5.0, 21)
    predicted = made.predict(margin)
    same = equivalent.outputs == 1 and (predicted == equivalent.predict(margin)).all()
    if not same or any(made.margin(score) != equivalent.margin(score) for score in predicted.tolist()):
        return f"margin and predict are not those of {equivalent.name}, which stands for it in XGBoost"
    _ = made.default_metric, made.label_kind, made.bounds, made.gradient_bits, made.quantile
    return ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


# ---- One objective for several models that train side by side -------------------------------------------
# Each model has its own margin for every row; its gradients are those of the objective at these margins.


def _of_base(fact: str) -> Any:
    return property(attrgetter(f"base.{fact}"))


@dataclass(frozen=True)
class Trials(Objective):
    """The objective `base`, with a single output, for `number` models. Margins are float64 [number, N]."""

    base: Any
    """An `Objective`, or the loss that boosting starts from."""
    number: int

    name, label_kind, metrics, link = map(_of_base, ("name", "label_kind", "metrics", "link"))
    gradient_bits, classes_key = map(_of_base, ("gradient_bits", "classes_key"))
    rows_per_hessian, sensitivity = map(_of_base, ("rows_per_hessian", "sensitivity"))
    default_metric, bounds, bounds_after = map(_of_base, ("default_metric", "bounds", "bounds_after"))
    quantile, xgboost_equivalent = map(_of_base, ("quantile", "xgboost_equivalent"))
    base_score = _of_base("base_score")
    """All models start from one constant."""

    @property
    def outputs(self) -> int:
        return self.number

    @property
    def start(self) -> HasGradients:
        """The start of the objective, for all models."""
        return self if self.base.start is self.base else Trials(self.base.start, self.number)

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """Gradients and hessians, float64 [number, N] each."""
        both = [self.base.gradients(own, label, weight) for own in margin]
        return np.stack([gradient for gradient, _ in both]), np.stack([hessian for _, hessian in both])
