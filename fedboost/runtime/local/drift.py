"""Rows held against those of a model, in one process: the same session, the same codec, no sockets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedboost.runtime.local.simulation import run_session, terms_for_tables
from fedboost.runtime.model import Model
from fedboost.runtime.results import Drift, drift_terms
from fedboost.runtime.signed_model import signed_model_of
from fedboost.terms.terms import Terms


def drift(
    model: Model | Path | str,
    shards: Mapping[str, Any] | Sequence[Any],
    terms: Terms | None = None,
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Drift:
    """Hold the rows of all parties in this process against those that a model was trained on.

    model: trained with `reference = true`, or the path of its file; shards, seed, nthread, site: as for
    `simulate`, labels are not needed; terms: those that say the columns, in place of those in the model;
    min_count: fewest rows of a count that is given. Over the network: `fedboost drift`, or
    `connect(...).drift(model)`. Raises ConfigError, SessionFailed.
    """
    agreed, reference = drift_terms(model, terms, min_count)
    if terms is None:
        agreed = terms_for_tables(agreed, shards)
    session, meter, _ = run_session(agreed, shards, seed=seed, nthread=nthread, site=site)
    return Drift.of(signed_model_of(session), reference, meter.traffic)
