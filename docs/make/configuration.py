"""docs/configuration.md, from the fields of the files of a site and an aggregator."""

from collections.abc import Iterator
from copy import copy
from typing import Any, get_args

from pydantic.fields import FieldInfo
from terms import section

from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.policy import ColumnRules, Policy
from fedboost.terms.reading import Frozen

HEAD = """# Files of a site and an aggregator

<!-- Written by `make reference`: change the fields in fedboost/runtime. -->

Every key of the TOML files that `fedboost party`, `fedboost keyholder` and `fedboost aggregator` take by
`--config`. Paths count from the folder of the file. A key that does not exist is refused, with the
nearest one that does. The terms of a training are another file: [terms](terms.md).
"""
POLICY = """What the site agrees to, whatever terms say, with what each key protects against.
[Policy](policy.md) says what each allows. `epsilon` and `delta` are given together."""


def page() -> str:
    """The whole page, as Markdown."""
    site = dict(PartyConfig.model_fields)
    site["data"] = changed(site["data"], annotation=str)
    site["nthread"] = changed(site["nthread"], default_factory=None, default=None)
    roles = {
        key: changed(field, description=f"Columns that terms may name as {key.replace('_', ' ')}.")
        for key, field in ColumnRules.model_fields.items()
    }
    sections = (
        ("A site: `party.toml`", "A key holder's file is the same, without `data`.", site),
        *tables(PartyConfig, "a site"),
        ("Table `[policy]` of a site", POLICY, Policy.model_fields),
        ("Table `[policy.columns]` of a site", 'In place of it, `columns = "any"` allows all.', roles),
        ("An aggregator: `aggregator.toml`", "", AggregatorConfig.model_fields),
        *tables(AggregatorConfig, "an aggregator"),
    )
    return "\n".join([HEAD, *(section(*parts) for parts in sections)])


def tables(model: type[Frozen], whose: str) -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    """The sections of the tables in a file, but for the policy."""
    for key, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Frozen) and kind is not Policy:
                about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
                yield f"Table `[{key}]` of {whose}", about, dict(kind.model_fields)


def changed(field: FieldInfo, **attributes: Any) -> FieldInfo:
    """A copy of a field with other attributes."""
    other = copy(field)
    for name, value in attributes.items():
        setattr(other, name, value)
    return other
