"""The terms as analysts write them in Python: those of the protocol, with a draft from a table.

`Terms(...)` and `Terms.draft(...)` raise ConfigError with one line for what cannot be.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from pydantic import ValidationError, field_validator

from fedboost.gbdt.objectives.registry import check_objective
from fedboost.runtime.data.check import Watch, of_draft, warn
from fedboost.runtime.data.draft import draft_schema
from fedboost.runtime.data.table import as_table, dense_of
from fedboost.runtime.files import write_atomically
from fedboost.runtime.local import simulation
from fedboost.runtime.model import Result, text_of
from fedboost.runtime.tasks import read_settings, terms_to_toml
from fedboost.terms import terms
from fedboost.terms.reading import first_fault

__all__ = ["Terms", "check_objective", "simulate"]

P = ParamSpec("P")


class Terms(terms.Terms):
    """The terms that every party agrees to for one session. xgb_model: a Model to continue, or the path of
    its file."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise first_fault(type(self), error, "terms") from None

    @field_validator("xgb_model", mode="before")
    @classmethod
    def _model_or_path(cls, value: object) -> object:
        return text_of(value)

    @classmethod
    def load(cls, path: Path | str) -> "Terms":
        """The terms in a TOML file."""
        return cls.read(read_settings(Path(path)), str(path))

    def save(self, path: Path | str) -> None:
        """Write the terms to a TOML file, whole or not at all."""
        write_atomically(Path(path), terms_to_toml(self).encode())

    @classmethod
    def draft(
        cls,
        data: Any,
        label: str,
        weight: str | None = None,
        base_margin: str | None = None,
        group: str | None = None,
        label_upper_bound: str | None = None,
        exclude: Sequence[str] = (),
        **settings: Any,
    ) -> "Terms":
        """Terms whose columns and objective are those found in a table (path, pandas, Arrow, arrays).

        label, weight, base_margin, group, label_upper_bound: names of columns; exclude: columns that are to
        be no features; settings: fields of Terms, under XGBoost's names. Words are drafted as classes, more
        than two numbers as amounts, unless the objective is set. Settings that are not given have XGBoost's
        defaults: min_child_weight too, where `fedboost terms` drafts ten rows in a leaf, as most sites want.
        Warns (TableWarning) of columns that were left out, and of what else is odd.
        """
        chosen = base_margin, settings.get("objective"), label_upper_bound, group
        table = as_table(data)
        draft = draft_schema(table, label, weight, exclude, *chosen)
        warn(of_draft(dense_of(table), label, draft, exclude))
        return cls.read({**draft.settings(), **settings})


def _warns(run: Callable[P, Result]) -> Callable[P, Result]:
    """A simulation that warns (TableWarning) of what is odd in the tables of the parties."""

    @wraps(run)
    def simulate(*arguments: P.args, **options: P.kwargs) -> Result:
        options.setdefault("on_table", Watch().table)
        return run(*arguments, **options)

    return simulate


simulate = _warns(simulation.simulate)
