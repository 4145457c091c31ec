"""Generates docs/configuration.md from the fields of site and aggregator files."""

from collections.abc import Iterator
from copy import copy
from typing import Any, get_args

from pydantic.fields import FieldInfo
from terms import section

from fedboost.runtime.config import AdderConfig, AggregatorConfig
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.policy import ColumnRules, Policy
from fedboost.terms.reading import Frozen

HEAD = """# Files of a site and an aggregator

<!-- Written by `make reference`: change the fields in fedboost/runtime. -->

All keys of the TOML files that are passed to `fedboost party`, `keyholder`, `aggregator` and `adder`
with `--config`. Relative paths are relative to the folder that contains the file. Unknown keys are rejected,
with a suggestion for the closest valid key. Training terms are in a separate file: [terms](terms.md).
"""
POLICY = """Limits on what this site agrees to, regardless of the terms, with the risk that each one
addresses. [Policy](policy.md) explains them. Set `epsilon` and `delta` together or not at all."""


def page() -> str:
    """Return the whole page as Markdown."""
    site = dict(PartyConfig.model_fields)
    site["data"] = changed(site["data"], annotation=str)
    site["nthread"] = changed(site["nthread"], default_factory=None, default=None)
    roles = {
        key: changed(field, description=f"Columns that terms may use as {key.replace('_', ' ')}.")
        for key, field in ColumnRules.model_fields.items()
    }
    sections = (
        ("A site: `party.toml`", "A key holder uses the same keys, except `data`.", site),
        *tables(PartyConfig, "a site"),
        ("Table `[policy]` of a site", POLICY, Policy.model_fields),
        (
            "Table `[policy.columns]` of a site",
            'Alternatively, set `columns = "any"` to allow all columns.',
            roles,
        ),
        ("An aggregator: `aggregator.toml`", "", AggregatorConfig.model_fields),
        *tables(AggregatorConfig, "an aggregator"),
        ("An adder: `adder.toml`", "", AdderConfig.model_fields),
    )
    return "\n".join([HEAD, *(section(*parts) for parts in sections)])


def tables(model: type[Frozen], whose: str) -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    """Yield a section (title, introduction, fields) for each table of a file, except the policy."""
    for key, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Frozen) and kind is not Policy:
                about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
                shown = key if kind in (field.annotation, *get_args(field.annotation)[:1]) else f"{key}.NAME"
                yield f"Table `[{shown}]` of {whose}", about, dict(kind.model_fields)


def changed(field: FieldInfo, **attributes: Any) -> FieldInfo:
    """Return a copy of a field with these attributes replaced."""
    other = copy(field)
    for name, value in attributes.items():
        setattr(other, name, value)
    return other
