"""Objectives of a site's own: classes that packages installed here offer as entry points.

Promises: nothing is looked up unless its name is no built-in's, and nothing is loaded but what is installed
here under GROUP, whoever names it: code never travels.
Refuses, with one line (ConfigError): names that no package offers here, or several; parameters a class does
not take; classes without what `objective.Loss` asks for, and those that predict otherwise than the objective
they name for XGBoost. And, at a party, gradients of which no sum can be made (Refused).
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, cast

import numpy as np

from fedboost.errors import ConfigError, Refused
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.objective import Loss, Slopes
from fedboost.gbdt.objectives.ranking import RANKINGS
from fedboost.gbdt.objectives.registry import LOSSES, loss_of, number

GROUP = "fedboost.objectives"
_NEEDED = (
    *("name", "outputs", "in_xgboost", "metric", "bounds", "gradient_bits", "quantile", "start", "gradients"),
    *("base_score", "shift", "margin", "predict", "bad_label"),
)
_KINDS: dict[object, type] = {"int": int, "float": float, "str": str}
"""Annotations that a module keeps as text."""


class _Offered(Protocol):
    """An entry point."""

    @property
    def name(self) -> str: ...
    @property
    def dist(self) -> Any: ...
    def load(self) -> Any: ...


def names() -> list[str]:
    """The objectives that packages offer here."""
    return sorted({one.name for one in _offered()})


def package_of(name: str) -> str:
    """The package that offers an objective here, as distribution==version."""
    package = _one(name).dist
    return f"{package.name}=={package.version}"


def parameters(name: str, given: Mapping[str, object]) -> dict[str, Any]:
    """The parameters as the class takes them: what it has for a float is one."""
    kind = _class(name)
    own = {one.name: _KINDS.get(one.type, one.type) for one in fields(kind)}
    for key in given:
        if key not in own:
            raise ConfigError(f"{name} has no parameter {key!r}; it takes {', '.join(own) or 'none'}")
    out = {}
    for key, value in given.items():
        try:
            out[key] = number(own[key], value)
        except ValueError:
            what = "a whole number" if own[key] is int else "a number"
            raise ConfigError(f"{name}: parameter {key} takes {what}, not {value!r}") from None
    return out


def objective(name: str, given: Mapping[str, object]) -> Loss:
    """The objective that a package offers here, with these parameters."""
    kind, told = _class(name), parameters(name, given)
    try:
        made = kind(**told)
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise ConfigError(f"{name} of {package_of(name)}: {_line(error)}") from None
    try:
        fault = _fault(made, name)
    except Exception as error:  # noqa: BLE001 - as above
        fault = _line(error)
    if fault:
        raise ConfigError(f"{name} of {package_of(name)} is no objective: {fault}")
    return cast(Loss, made)


def gradients(
    loss: Slopes, name: str, margin: Float64, label: Float32, weight: Float32
) -> tuple[Float64, Float64]:
    """As a package's objective has them. Refused where its code fails, or no sum can be made of them."""
    try:
        gradient, hessian = (
            np.ascontiguousarray(v, np.float64) for v in loss.gradients(margin, label, weight)
        )
    except Exception as error:  # noqa: BLE001 - it is the package's own code
        raise Refused(f"objective {name} failed at its rows", _line(error)) from None
    sound = gradient.shape == hessian.shape == margin.shape and bool((hessian >= 0.0).all())
    if not sound or not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise Refused(f"objective {name} made gradients that are none: hessians below 0, or no numbers")
    return gradient, hessian


def check_objective(loss: Loss, label: Float32) -> None:
    """For the tests of whoever writes one: ConfigError unless its gradients at these labels, float32 [N] or
    [2, N], are those of single rows, finite, within its bounds, with hessians of 0 or more, and in proportion
    to the weights."""
    rows = label.shape[-1]
    margin = np.linspace(-4.0, 4.0, rows)
    ones, halves = np.ones(rows, np.float32), np.full(rows, 0.5, np.float32)
    found = loss.gradients(margin, label, ones)
    again = loss.gradients(margin[::-1].copy(), label[..., ::-1].copy(), ones)
    half = loss.gradients(margin, label, halves)
    for what, one, turned, light in zip(("gradient", "hessian"), found, again, half, strict=True):
        if one.dtype != np.float64 or one.shape != margin.shape:
            raise ConfigError(f"the {what} is {one.dtype} {list(one.shape)}, not float64 {[rows]}")
        if not np.isfinite(one).all():
            raise ConfigError(f"the {what} of row {int(np.argmin(np.isfinite(one)))} is not finite")
        if (one != turned[::-1]).any():
            raise ConfigError(f"the {what} of a row depends on the other rows, or on their order")
        if (light != 0.5 * one).any():
            raise ConfigError(f"the {what} is not in proportion to the weight")
    if (found[1] < 0.0).any():
        raise ConfigError(f"the hessian of row {int(np.argmin(found[1]))} is below 0")
    for what, one, bound in zip(("gradient", "hessian"), found, loss.bounds or (), strict=False):
        if np.abs(one).max() > 2.0**bound:
            raise ConfigError(f"a {what} is {np.abs(one).max():g}, and its bound 2**{bound}")


def _offered() -> list[_Offered]:
    from importlib.metadata import entry_points  # only where it is wanted: it takes a while

    return list(entry_points(group=GROUP))


def _one(name: str) -> _Offered:
    found = [one for one in _offered() if one.name == name]
    if len(found) != 1:
        packages = ", ".join(sorted(f"{one.dist.name}" for one in found))
        raise ConfigError(
            f"objective {name!r} is offered by several packages here: {packages}; keep one"
            if found
            else f"objective {name!r} is offered by no package here (entry points of group {GROUP})"
        )
    return found[0]


def _class(name: str) -> Any:
    offered = _one(name)
    try:
        kind = offered.load()
    except Exception as error:  # noqa: BLE001 - importing runs the package's own code
        raise ConfigError(f"{name} of {package_of(name)} cannot be loaded: {_line(error)}") from None
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ConfigError(f"{name} of {package_of(name)} is no objective: it is no dataclass")
    return kind


def _fault(made: Any, name: str) -> str:
    """Why this is no objective of that name; nothing if it is one."""
    lacking = [one for one in _NEEDED if not hasattr(made, one)]
    if lacking:
        return f"it has no {', '.join(lacking)}"
    if made.name != name:
        return f"it calls itself {made.name!r}"
    if made.outputs != 1:
        return "it has several outputs"
    told = dict(made.in_xgboost)
    like = told.pop("name", None)
    single = [one for one in LOSSES if one not in RANKINGS]
    if like not in single:
        return f"in_xgboost names {like!r}, which is none of {', '.join(single)}"
    other = loss_of(like, {key: value for of in told.values() for key, value in of.items()})
    margin: Float64 = np.linspace(-5.0, 5.0, 21)
    predicted = made.predict(margin)
    same = other.in_xgboost == told and other.outputs == 1 and (predicted == other.predict(margin)).all()
    if not same or any(made.margin(score) != other.margin(score) for score in predicted.tolist()):
        return f"margin, predict and in_xgboost are not those of {like}, which stands for it in XGBoost"
    return ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
