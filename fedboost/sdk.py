"""`Terms` for analysts who use Python: validated settings, which can be drafted from a table.

`Terms(...)` and `Terms.draft(...)` raise ConfigError with a one-line message if a setting is invalid.
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
    """The settings that all parties agree to for one session. Keyword arguments are the keys of a terms file.
    xgb_model may also be a `Model` to continue training from, or the path of its file."""

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
        """Read terms from a TOML file."""
        return cls.read(read_settings(Path(path)), str(path))

    def save(self, path: Path | str) -> None:
        """Write the terms to a TOML file, atomically."""
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
        """Draft terms, with columns and objective inferred from a table.

        Unless `objective` is set, a text label is treated as classification, and a numeric label with more
        than two distinct values as regression. Other settings have XGBoost's defaults. This includes
        min_child_weight, whereas `fedboost terms` drafts a minimum of ten rows per leaf, as most sites
        require. A TableWarning is issued for each omitted column and each other finding about the table.

        Args:
            data: the table: a path, a pandas or Arrow table, or a mapping of arrays.
            label, weight, base_margin, group, label_upper_bound: names of columns.
            exclude: names of columns that must not be features.
            settings: other keys of Terms, under XGBoost's names.
        """
        chosen = base_margin, settings.get("objective"), label_upper_bound, group
        table = as_table(data)
        draft = draft_schema(table, label, weight, exclude, *chosen)
        warn(of_draft(dense_of(table), label, draft, exclude))
        return cls.read({**draft.settings(), **settings})


def _warns(run: Callable[P, Result]) -> Callable[P, Result]:
    """Wrap `simulate` so that it issues a TableWarning for each finding about the parties' tables."""

    @wraps(run)
    def simulate(*arguments: P.args, **options: P.kwargs) -> Result:
        options.setdefault("on_table", Watch().table)
        return run(*arguments, **options)

    return simulate


simulate = _warns(simulation.simulate)
