"""The terms as analysts write them in Python: those of the protocol, with a draft from a table.

Promises: `Terms(...)` and `Terms.draft(...)` raise ConfigError with one line for what cannot be.
Refuses: tables without the label, settings that do not exist.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator

from fedboost.gbdt.objectives.plugins import check_objective
from fedboost.runtime.continuation import text_of
from fedboost.runtime.data.draft import draft_schema
from fedboost.runtime.data.table import as_table
from fedboost.runtime.terms_file import read_settings
from fedboost.terms import terms
from fedboost.terms.reading import first_fault

__all__ = ["Terms", "check_objective"]


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

    @classmethod
    def draft(
        cls,
        data: Any,
        label: str,
        weight: str | None = None,
        base_margin: str | None = None,
        group: str | None = None,
        label_upper_bound: str | None = None,
        site: str | None = None,
        **settings: Any,
    ) -> "Terms":
        """Terms whose columns and objective are those found in a table (path, pandas, Arrow, arrays).

        label, weight, base_margin, group, label_upper_bound, site: names of columns, none of them a feature;
        settings: fields of Terms, under XGBoost's names. Words are drafted as classes, more than two numbers
        as amounts, unless the objective is set.
        """
        chosen = base_margin, settings.get("objective"), label_upper_bound, group
        draft = draft_schema(as_table(data), label, weight, () if site is None else (site,), *chosen)
        return cls.read({**draft.settings(), **settings})
