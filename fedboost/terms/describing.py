"""Sessions that describe rows: their terms, and the columns that are counted.

Refuses: terms of parties that hold different columns (ConfigError).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.terms.hiding import Hiding
from fedboost.terms.objective import Objective
from fedboost.terms.session import TO_DESCRIBE
from fedboost.terms.terms import Terms

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles of a number."""
MISSING, UNDECLARED = "missing", "undeclared"
_KEPT = frozenset(
    {
        *("columns", "parties", "max_bin", "turn_timeout", "rejoin_timeout", "min_count", "noise"),
        *(key for group in (Objective, Hiding) for key in group.file_keys()),
    }
)
"""Keys that a description goes by; the others are about trees."""


def class_names(terms: Terms) -> tuple[str, ...]:
    """The values of a label of classes, from class 0 on; none for other labels."""
    columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
    if loss.classes_key == "positive":
        return ("0", "1") if columns.positive is None else (f"not {columns.positive}", columns.positive)
    return columns.classes or tuple(map(str, range(terms.objective.num_class or 0)))


def columns_of_levels(
    terms: Terms, counts: Iterable[Sequence[int]], told: Callable[[int], int | None]
) -> Iterator[dict[str, Any]]:
    """Yield what is said of each categorical column, as JSON. counts: of each column the rows without a
    value, of each level, and of undeclared ones; told: what is told of a count."""
    for (name, declared), counted in zip(terms.columns.categorical.items(), counts, strict=True):
        absent, *of_levels, undeclared = map(told, counted)
        own = dict(zip(declared, of_levels, strict=True))
        head = {"name": name, "kind": "categorical", MISSING: absent, UNDECLARED: undeclared}
        yield {**head, "levels": own}


def gridded(terms: Terms) -> tuple[str, ...]:
    """The columns whose rows are counted by value: the numeric features, and a label that is described and is
    a number."""
    kind = terms.objective.loss.xgboost_equivalent.label_kind
    counts_label = terms.task == TO_DESCRIBE and kind not in (LabelKind.CLASS, LabelKind.INTERVAL)
    return (*terms.columns.numeric, *([terms.columns.label] if counts_label else []))


def terms_to_describe(terms: Terms, min_count: int | None = None) -> Terms:
    """The terms by which the rows of a training under `terms` are described, or those themselves if they
    describe. min_count: in place of theirs."""
    if terms.vertical.is_used:
        raise ConfigError(
            f"{terms.vertical.key}: rows are described where each party has all columns; `fedboost check` "
            f"tells each party about its own table"
        )
    values: dict[str, Any] = terms.model_dump(mode="json", exclude_unset=True)
    if terms.task != TO_DESCRIBE:
        values = {key: value for key, value in values.items() if key in _KEPT} | {"program": TO_DESCRIBE}
    if min_count is not None:
        values["min_count"] = min_count
    return Terms.read(values)
