"""Parties that hold different columns predict together, in one process: the same session, the same codec, no
sockets.

Promises: the prediction is that of the whole model on the joined table, whatever the seed.
Refuses: parties without a model or a table (ConfigError), and what the session refuses (SessionFailed).
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.booster import Booster
from fedboost.holders.columns import holder_for
from fedboost.holders.prediction import Prediction, PredictionHolder
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Holder
from fedboost.runtime.aggregator.programs import program_of
from fedboost.runtime.data.shard import rows_to_predict
from fedboost.runtime.data.table import as_table
from fedboost.runtime.local.simulation import play, reader_of, sites_of
from fedboost.runtime.party_model import PartyModel, terms_to_predict
from fedboost.runtime.telemetry import Meter
from fedboost.terms.terms import Terms


def predict_jointly(
    party_models: Mapping[str, PartyModel], tables: Mapping[str, Any], min_common_rows: int | None = None
) -> Float64:
    """Predictions of all rows of the label holder's table, by the parts of a model that parties keep, in this
    process: float64 [rows], or [rows, classes] for multi:softprob, in the order of that table.

    party_models: party to its part (`Result.party_models`); tables: party to its table, as for `simulate`,
    with its columns and the row ids. Where a party does not have an id, its columns count as missing.
    min_common_rows: fewest ids that each has to have, unless it is to be that of the training. `fedboost
    predict --party` does the same over the network. Raises ConfigError, SessionFailed.
    """
    if not party_models:
        raise ConfigError("no parts of a model are given")
    first = next(iter(party_models.values()))
    holder = first.terms.vertical.label_holder
    assert holder is not None
    if holder not in tables:
        raise ConfigError(f"no table of label holder {holder}, whose rows are predicted")
    tables = {name: as_table(table) for name, table in tables.items()}
    agreed = terms_to_predict(first, rows_to_predict(tables[holder], first.terms), min_common_rows)
    models = {name: part.booster for name, part in party_models.items()}
    return run_prediction(agreed, models, tables).values


def run_prediction(
    terms: Terms,
    models: Mapping[str, Booster],
    tables: Mapping[str, Any],
    seed: int = 0,
    nthread: int = 1,
) -> Prediction:
    """The prediction of all rows of the label holder.

    terms: those of the training, changed by `predict_with` and `predict_rows`; models: of each party of them,
    as it was told it (`told_of`); tables: of each party, as for `simulate`, with its columns and the row ids.
    seed: of the order of messages; nthread: threads of each party, which take turns.
    """
    if not terms.vertical.predicts:
        raise ConfigError("these terms train: change them by predict_with and predict_rows to predict")
    for what, given in (("model", models), ("table", tables)):
        if missing := [party for party in terms.parties if party not in given]:
            raise ConfigError(f"no {what} of party {missing[0]}: each party needs one to predict")
    held: dict[str, Holder] = {}

    def keep(make: Callable[[Terms, bytes], Holder], name: str, terms: Terms, secret: bytes) -> Holder:
        held[name] = make(terms, secret)
        return held[name]

    holders = {}
    for name in terms.parties:
        model_of = partial(_given, models[name])
        make = holder_for(reader_of(tables[name], terms, name), name, nthread, model_of)
        holders[name] = partial(keep, make, name)
    session = AggregatorSession("prediction", terms, program_of(terms, ()), NOTHING_YET, draw=os.urandom)
    play(session, sites_of(terms, holders, {}), seed, Meter(terms.parties))
    if session.error is not None:
        raise session.error
    (block,) = terms.blocks
    holder = held[block.label_holder]
    assert isinstance(holder, PredictionHolder)
    assert holder.prediction is not None
    return holder.prediction


def _given(model: Booster, terms: Terms) -> Booster:
    return model
