"""Objectives by name, and their construction from the parameters in the terms.

`register` adds an objective; `built_in.BUILT_IN` lists the built-in ones. Raises TypeError for a class that
is not an objective, and ValueError if the name is already taken."""

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
    """Register an objective class so that it can be used in terms. Can be used as a decorator.

    Every party and the aggregator must register the class before they read terms. The parameters of the class
    become keys of the terms. Raises TypeError if the class is not a dataclass derived from Objective, and
    ValueError if the name is taken."""
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
    """Return the fields of an objective that are parameters, i.e. those that take part in comparisons."""
    return [parameter for parameter in fields(OBJECTIVES[name]) if parameter.compare]  # type: ignore[arg-type]


def parameters_of(name: str) -> dict[str, bool]:
    """Return the parameters of the objective with this name, each mapped to True if it is required."""
    return {parameter.name: parameter.default is MISSING for parameter in _parameters(name)}


def make_objective(name: str, parameters: Mapping[str, object]) -> Objective:
    """Create the objective with this name. Parameters that are None or that the objective does not have are
    ignored. Raises LookupError, TypeError or ValueError if a parameter is missing or has an invalid value."""
    types = {parameter.name: parameter.type for parameter in _parameters(name)}
    own = {key: parameters[key] for key in types if parameters.get(key) is not None}
    return OBJECTIVES[name](**{key: to_number(types[key], value) for key, value in own.items()})


def to_number(kind: object, value: object) -> Any:
    """Convert a parameter to this type (int, float, bool or str). Raises ValueError if it is invalid."""
    if kind is str:
        return str(value)
    if kind is bool:
        # As in the terms and in XGBoost's file.
        return bool(("False", "True", "0", "1").index(str(value)) % 2)
    return int(str(value)) if kind is int else float(str(value).strip("[]"))  # XGBoost writes some as lists


# ---- Objectives from packages: classes that installed packages offer as entry points --------------------
# Guarantees: only names that are not registered are looked up, and only installed code under GROUP is loaded,
# regardless of the terms: code is never sent. ConfigError is raised, in one line, if no installed package, or
# more than one, offers a name, if a class does not have a parameter, and if a class is not an
# `objective.Objective` or predicts differently from its xgboost_equivalent. A party raises Refused if
# gradients are invalid.


GROUP = "fedboost.objectives"
_KINDS: dict[object, type] = {"int": int, "float": float, "str": str}
"""Types by name, for modules whose annotations are strings."""


def names() -> list[str]:
    return sorted({entry_point.name for entry_point in entry_points(group=GROUP)})


def package_of(name: str) -> str:
    """Return the installed package that offers an objective, as distribution==version."""
    package = _entry_point(name).dist
    return f"{package.name}=={package.version}"


def parameters(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Convert an objective's parameters to their declared types. Raises ConfigError for a wrong one."""
    kind = _class(name)
    own = {field.name: _KINDS.get(field.type, field.type) for field in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in own:
            raise ConfigError(
                "objective-parameter-unknown",
                f"objective {name} has no parameter {key!r}; valid parameters: {', '.join(own) or 'none'}",
            )
    out = {}
    for key, value in values.items():
        try:
            out[key] = to_number(own[key], value)
        except ValueError:
            what = "a whole number" if own[key] is int else "a number"
            raise ConfigError(
                "objective-parameter-invalid",
                f"objective {name}: parameter {key} must be {what}, not {value!r}",
            ) from None
    return out


def objective(name: str, values: Mapping[str, object]) -> Objective:
    """Create an objective that an installed package offers. values: parameters of the objective. Raises
    ConfigError if no package or several packages offer it, or if it is not a valid objective."""
    kind, own = _class(name), parameters(name, values)
    if kind.__abstractmethods__:
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(
            "objective-incomplete",
            f"{name} from {package_of(name)} is not a valid objective: it does not define {lacking}",
        )
    try:
        made = kind(**own)
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise ConfigError(
            "objective-not-created", f"{name} from {package_of(name)} cannot be created: {_line(error)}"
        ) from None
    try:
        fault = _fault(made, name)
    except Exception as error:  # noqa: BLE001 - as above
        fault = _line(error)
    if fault:
        raise ConfigError(
            "objective-invalid", f"{name} from {package_of(name)} is not a valid objective: {fault}"
        )
    return made


def gradients(
    loss: HasGradients, name: str, margin: Float64, label: Float32, weight: Float32
) -> tuple[Float64, Float64]:
    """Call an installed package's objective and return its gradients and hessians, float64, shaped like
    `margin`.

    Args:
        loss: the objective.
        name: the objective's name, for error messages.
        margin: float64 [N].
        label: float32 [N], or [2, N] if labels are intervals.
        weight: float32 [N].

    Raises:
        Refused: if the package's code fails, or if it returns an array of the wrong shape, a number that is
            not finite, or a negative hessian.
    """
    try:
        gradient, hessian = (
            np.ascontiguousarray(v, np.float64) for v in loss.gradients(margin, label, weight)
        )
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise Refused(
            "objective-failed", f"objective {name} failed on this party's rows", _line(error)
        ) from None
    sound = gradient.shape == hessian.shape == margin.shape and bool((hessian >= 0.0).all())
    if not sound or not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise Refused(
            "objective-gradients-invalid",
            f"objective {name} returned invalid gradients: the shape is wrong, a number is not finite, or a "
            f"hessian is negative",
        )
    return gradient, hessian


def check_objective(loss: Objective, label: Float32) -> None:
    """Check an objective; intended for the tests of the package that defines it.

    label: labels for which to compute gradients, float32 [N], or [2, N] if they are intervals. Raises
    ConfigError unless each row's gradient and hessian depend only on that row, are finite, lie within the
    objective's bounds and are proportional to the weight. Hessians must not be negative."""
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
        raise ConfigError("objective-hessian", f"the hessian of row {int(np.argmin(whole[1]))} is negative")
    for what, values, bound in zip(("gradient", "hessian"), whole, loss.bounds or (), strict=False):
        if np.abs(values).max() > 2.0**bound:
            raise ConfigError(
                "objective-bound",
                f"a {what} has magnitude {np.abs(values).max():g}, above its bound 2**{bound}",
            )


def _entry_point(name: str) -> Any:
    matching = [entry_point for entry_point in entry_points(group=GROUP) if entry_point.name == name]
    if len(matching) != 1:
        packages = ", ".join(
            sorted(f"{entry_point.dist.name}" for entry_point in matching if entry_point.dist)
        )
        raise ConfigError(
            "objective-not-installed",
            f"objective {name!r} is offered by several installed packages: {packages}; uninstall all but one"
            if matching
            else f"objective {name!r} is not offered by any installed package (entry point group {GROUP})",
        )
    return matching[0]


def _class(name: str) -> type[Objective]:
    entry_point = _entry_point(name)
    try:
        kind = entry_point.load()
    except Exception as error:  # noqa: BLE001 - importing runs the package's own code
        raise ConfigError(
            "objective-not-loaded", f"{name} from {package_of(name)} cannot be loaded: {_line(error)}"
        ) from None
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ConfigError(
            "objective-invalid",
            f"{name} from {package_of(name)} is not a valid objective: it is not a dataclass",
        )
    if not issubclass(kind, Objective):
        raise ConfigError(
            "objective-invalid",
            f"{name} from {package_of(name)} is not a valid objective: it is not derived from Objective",
        )
    return kind


def _fault(made: Objective, name: str) -> str:
    """Describe why this is not a valid objective of that name. Returns an empty string if it is valid."""
    if made.name != name:
        return f"its name is {made.name!r}"
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
        return f"margin and predict differ from those of {equivalent.name}, its xgboost_equivalent"
    _ = made.default_metric, made.label_kind, made.bounds, made.gradient_bits, made.quantile
    return ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


# ---- One objective for several models that are trained at once ------------------------------------------
# Each model has its own margin for every row; its gradients are those of the objective at these margins.


def _of_base(fact: str) -> Any:
    return property(attrgetter(f"base.{fact}"))


@dataclass(frozen=True)
class Trials(Objective):
    """Objective for several models that are trained at once. Each model has its own margin for every row:
    margins are float64 [number, N].

    base: the objective of every model, which must have a single output; number: number of models."""

    base: Any
    """An `Objective`, or the loss that determines the initial constant."""
    number: int

    name, label_kind, metrics, link = map(_of_base, ("name", "label_kind", "metrics", "link"))
    gradient_bits, classes_key = map(_of_base, ("gradient_bits", "classes_key"))
    rows_per_hessian, sensitivity = map(_of_base, ("rows_per_hessian", "sensitivity"))
    default_metric, bounds, bounds_after = map(_of_base, ("default_metric", "bounds", "bounds_after"))
    quantile, xgboost_equivalent = map(_of_base, ("quantile", "xgboost_equivalent"))
    base_score = _of_base("base_score")
    """`base_score` of the base objective: all models start from the same constant."""

    @property
    def outputs(self) -> int:
        return self.number

    @property
    def start(self) -> HasGradients:
        """Loss that determines the initial constant, for all models."""
        return self if self.base.start is self.base else Trials(self.base.start, self.number)

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """Compute the gradients and hessians of each model: two float64 [number, N]."""
        both = [self.base.gradients(own, label, weight) for own in margin]
        return np.stack([gradient for gradient, _ in both]), np.stack([hessian for _, hessian in both])
