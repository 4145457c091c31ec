"""Candidates tried side by side in one process: the same session, the same codec, no sockets."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.results import Tuning, terms_to_tune
from fedboost.runtime.signed_model import signed_model_of
from fedboost.terms.terms import Terms


def tune(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    space: Mapping[str, Sequence[float]] | None = None,
    trials: int | None = None,
    sampler: Any = None,
    seed: int = 0,
    nthread: int = 1,
    site: str | None = None,
) -> Tuning:
    """Try settings of trees side by side in this process, dropping the worst by validation rows.

    terms: those of a training, or with `program = "tune"` and `candidates`; space: setting to [low, high], or
    to a list of three values and more, `tuning.SPACE` unless given; trials: candidates, 27 unless given, of
    which the first has the settings of the terms; sampler: a sampler of Optuna (the extra optuna), or its
    name, in place of a Latin hypercube; shards, seed, nthread, site: as for `simulate`. Over the network:
    `fedboost tune`, or `connect(...).tune(terms)`. Raises ConfigError, SessionFailed.
    """
    agreed = terms_to_tune(terms, space, trials, sampler)
    session, meter, _ = run_session(agreed, shards, seed=seed, nthread=nthread, site=site)
    return Tuning.of(agreed, signed_model_of(session), meter.traffic)
