"""The evaluation of a model in one process: the same session, the same codec, no sockets."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedboost.runtime.local.simulation import run_session, terms_for_tables
from fedboost.runtime.model import Model
from fedboost.runtime.results import Evaluation, evaluation_terms
from fedboost.runtime.signed_model import signed_model_of
from fedboost.terms.terms import Terms


def evaluate(
    model: Model | Path | str,
    shards: Mapping[str, Any] | Sequence[Any],
    terms: Terms | None = None,
    by: Iterable[str] = (),
    by_site: bool = False,
    threshold: float | None = None,
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
    rows: str | None = None,
) -> Evaluation:
    """Measure a model on the rows of all parties in this process.

    model: or the path of its file, of fedboost or XGBoost; shards, seed, nthread, site: as for `simulate`;
    terms: those that say the columns, which XGBoost's own files need; the parties of a model's own terms may
    be others, and so few that only `plain` takes them. by: categorical features, by whose levels results are
    split; by_site: also by site; threshold: probability above which a row counts as predicted positive;
    min_count: fewest rows of a count that is given; rows: "held-out", those that no tree was grown on, which
    is the default where the training held rows out, or "all". Held-out rows are drawn again as in the
    training: the tables have to be those of the training, under the same names. Over the network:
    `fedboost evaluate`, or `connect(...).evaluate(model)`. Raises ConfigError, SessionFailed.
    """
    agreed = evaluation_terms(model, terms, by, by_site, threshold, min_count, rows)
    if terms is None:
        agreed = terms_for_tables(agreed, shards)
    session, meter, _ = run_session(agreed, shards, seed=seed, nthread=nthread, site=site)
    return Evaluation.of(signed_model_of(session), meter.traffic)
