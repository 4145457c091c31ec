"""The facts of a report: those in a model file, and those of rows that are at hand.

Promises: rows are predicted in this process, and nothing is sent; their figures are those that an evaluation
of one site's rows gives, with the same floor under counts.
Refuses: tables without the columns of the terms, or with fewer rows than that floor (ConfigError).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.boosting.programs.evaluate import summary_of
from fedboost.boosting.queries.evaluation import EvaluationQuery
from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.fixedpoint import EXPONENT_CELLS
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.threads import Threads
from fedboost.horizontal.evaluation import measured
from fedboost.people.facts import VerificationFacts
from fedboost.people.report.facts import (
    KINDS,
    DependenceFacts,
    ReportFacts,
    RowsFacts,
    SessionFacts,
    TreeFacts,
)
from fedboost.people.report.page import page
from fedboost.people.tree_drawing import tree_svg
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.verification import verified
from fedboost.terms.evaluating import kept_settings, weight_scale
from fedboost.terms.hiding import Hiding
from fedboost.terms.session import TO_TRAIN
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.runtime.model_file import Model

_NOBODY = "party : "
"""How a refusal begins of rows that are no party's."""
MAX_FEATURES = 6
"""Features whose partial dependence is drawn."""
MAX_TREES = 3
MAX_LEAVES = 64
"""Leaves of a tree that is drawn in a page."""
MAX_DEPENDENCE_ROWS = 10_000
"""Rows that partial dependence is a mean over: of more, so many in even steps."""


def written(
    model: "Model",
    rows: RowsFacts | None = None,
    verification: VerificationFacts | None = None,
    session: SessionFacts | None = None,
) -> str:
    """Return the report of a model as HTML. session: that which trained it, where it was followed."""
    by_kind = [model.importance(kind) for kind in KINDS]
    importance = {name: [values[name] for values in by_kind] for name in by_kind[0]}
    trees = [_tree(model, number) for number in range(min(MAX_TREES, len(model.booster.trees)))]
    has_classes = model.terms.objective.loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    classes = tuple(map(str, model.classes)) if has_classes else ()
    facts = ReportFacts(model.outline, model.rounds, importance, trees, classes, verification, rows, session)
    return page(facts)


def signature_facts(model: "Model", keys: Path) -> VerificationFacts:
    """Return what holds of a model's signatures, by the root in a folder of keys."""
    roots, denied = read_trust(keys)
    return verified(model, "model", roots, datetime.now(UTC), denied)


def _tree(model: "Model", number: int) -> TreeFacts:
    tree, title, picture = model.booster.trees[number], model.tree_title(number), ""
    if len(tree.leaves) <= MAX_LEAVES:
        categories = model.terms.columns.categorical
        picture = tree_svg(tree, model.booster.features, categories, title, in_page=True)
    return TreeFacts(title, len(tree.leaves), picture, model.tree_text(number))


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
    counts = gradients.count_exponents(terms.objective.loss.start)
    query = EvaluationQuery.of(terms, shard.rows, weight_scale(terms, counts[-EXPONENT_CELLS:]))
    summary = summary_of(terms, query, measured(query, gradients, shard.rows))
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
