"""The description of rows in one process: the same session, the same codec, no sockets."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.results import Description
from fedboost.runtime.signed_model import signed_model_of
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms


def describe(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    min_count: int | None = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Description:
    """Count the rows of all parties in this process: missing values, levels, labels, quantiles.

    terms: those of a training, or with `program = "describe"`; shards, seed, nthread, site: as for
    `simulate`; min_count: fewest rows of a count that is given, in place of that of the terms. Over the
    network: `fedboost describe`, or `connect(...).describe(terms)`. Raises ConfigError, SessionFailed.
    """
    agreed = terms_to_describe(terms, min_count)
    session, meter, _ = run_session(agreed, shards, seed=seed, nthread=nthread, site=site)
    return Description.of(signed_model_of(session), meter.traffic)
