"""The facts of a report that need more than the model: those of signatures, and of rows that are at hand.

Promises: rows are predicted in this process, and nothing is sent; their figures are those that an evaluation
of one site's rows gives, with the same floor under counts.
Refuses: tables without the columns of the terms, or with fewer rows than that floor (ConfigError).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.boosting.programs.tasks import measuring_query, summary_of
from fedboost.boosting.queries.labels import MagnitudesQuery
from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.threads import Threads
from fedboost.holders.evaluation import magnitudes, measured
from fedboost.people.facts import VerificationFacts
from fedboost.people.report.markup import DependenceFacts, RowsFacts, SessionFacts
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.signed_model import verified, written
from fedboost.terms.hiding import Hiding
from fedboost.terms.session import TO_TRAIN
from fedboost.terms.tasks import kept_settings
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.runtime.model import Model

_NOBODY = "party : "
"""How a refusal begins of rows that are no party's."""
MAX_FEATURES = 6
"""Features whose partial dependence is drawn."""
MAX_DEPENDENCE_ROWS = 10_000
"""Rows that partial dependence is a mean over: of more, so many in even steps."""


UNKNOWN = {"trained": 0.0, "unknown": 1.0}
"""Of rows that are given for a report it is not known whether trees were grown on them."""


def report_of(
    model: "Model",
    data: Any,
    keys: Path | str | None,
    min_count: int | None,
    session: SessionFacts | None = None,
) -> str:
    """Return the report of a model, as HTML, with rows, signatures and session where they are given."""
    rows = None if data is None else rows_facts(model, data, min_count)
    signatures = None if keys is None else signature_facts(model, Path(keys))
    return written(model, rows, signatures, session)


def signature_facts(model: "Model", keys: Path) -> VerificationFacts:
    """Return what holds of a model's signatures, by the root in a folder of keys."""
    roots, denied = read_trust(keys)
    return verified(model, "model", roots, datetime.now(UTC), denied)


def rows_facts(model: "Model", data: Any, min_count: int | None = None, source: str = "") -> RowsFacts:
    """Return a model's figures on rows with labels. data: a table, as `Model.predict` takes it; min_count:
    in place of that of the terms; source: what to call the table, its own name unless given."""
    named = shown(data) if isinstance(data, (str, Path, Database)) else "the table"
    table, source = as_table(data), source or named
    terms = _unprotected(model.terms, min_count)
    try:
        shard = to_shard(table, terms, "")
    except SchemaMismatch as error:  # which says no more to other parties
        raise ConfigError(f"{source}: {error.detail}") from None
    except Refused as error:
        raise ConfigError(f"{source}: {error.public.removeprefix(_NOBODY)}", error.detail) from None
    if shard.rows < terms.evaluation.min_count:
        raise ConfigError(
            f"{source}: {shard.rows} rows; give {terms.evaluation.min_count} at least, or leave --data out"
        )
    features = np.column_stack([column[:] for column in shard.columns])
    gradients = Gradients(terms.objective.loss, shard.label, shard.weight, shard.group, Threads(1))
    gradients.margin[:] = model.booster.margins(features, shard.base_margin)
    first = MagnitudesQuery(terms.metrics)
    query = measuring_query(
        terms, first, shard.rows, magnitudes(first, gradients, (shard.rows, 0, shard.rows))
    )
    summary = summary_of(terms, query, measured(query, gradients, shard.rows)) | {
        "of": "all",
        "shares": UNKNOWN,
    }
    return RowsFacts(Path(source).name, summary, _dependence(model, features, shard.base_margin))


def _dependence(model: "Model", features: Any, base_margin: Any) -> Sequence[DependenceFacts]:
    step = -(-len(features) // MAX_DEPENDENCE_ROWS)
    rows, base = features[::step], None if base_margin is None else base_margin[::step]
    categorical = model.terms.columns.categorical
    out = []
    for name in [*model.importance()][:MAX_FEATURES]:
        if name not in categorical and np.isnan(rows[:, model.booster.features.index(name)]).all():
            continue
        grid, means = model.partial_dependence(rows, name, base_margin=base)
        out.append(DependenceFacts(name, name in categorical, grid, np.reshape(means, (len(grid), -1))))
    return out


def _unprotected(terms: Terms, min_count: int | None) -> Terms:
    """The terms of rows that are all here, by which their labels are read and the metrics are chosen."""
    values = kept_settings(terms, TO_TRAIN)
    hiding = {*Hiding.file_keys(), "parties", "party_metrics", "subgroups", "program"}
    values = {key: value for key, value in values.items() if key not in hiding} | {"protection": "plain"}
    values["columns"] = {
        key: value for key, value in values["columns"].items() if key not in ("held", "subgroups")
    }
    return Terms.read(values if min_count is None else values | {"min_count": min_count})
