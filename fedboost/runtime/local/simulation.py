"""Runs sessions with all parties and the aggregator in one process, without sockets. The sessions and the
message codec are the same as over the network.

Every message is encoded and decoded, so traffic is measured in bytes on the wire. Messages of parties are
delivered in a random order that depends on the seed. The model does not depend on the order.
"""

import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, overload

from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, DurabilityError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.threads import SEARCH, Threads
from fedboost.holders.columns import Prediction, PredictionHolder, holder_for
from fedboost.holders.shard import Shard
from fedboost.privacy.identity import in_memory
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Holder, Program
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import FromParty, Outbox, ToParty
from fedboost.protocol.parts import Part
from fedboost.protocol.party import PartySession
from fedboost.protocol.run import Callback
from fedboost.protocol.site import KEY_BYTES, Site
from fedboost.runtime.aggregator.programs import program_of
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.draft import split_by_site
from fedboost.runtime.data.parquet import ParquetTable, keep, stream_of
from fedboost.runtime.data.shard import rows_to_predict, to_shard, with_label_noise
from fedboost.runtime.data.table import as_table, is_collection
from fedboost.runtime.data.values import give_back, keep_freed_memory
from fedboost.runtime.model import Result, finish
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.telemetry import Meter, Row
from fedboost.terms.terms import Terms
from fedboost.wire.messages import encode_to_party, size_from_party

Reader = Callable[[Terms], Shard]
OnTable = Callable[[Terms, str, Any], None]


def simulate(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    program: Program | None = None,
    seed: int = 0,
    on_round: Callable[[Row], None] | None = None,
    nthread: int = 1,
    callbacks: Iterable[Callback] = (),
    on_table: OnTable | None = None,
    site: str | None = None,
    models: Mapping[str, PartyModel] | None = None,
) -> Result:
    """Train a model in this process, with simulated parties and a simulated aggregator.

    Args:
        shards: party name -> table (path, `Database`, pandas, polars, Arrow, or a mapping of columns to
            arrays); or a list of tables, for parties party-1, party-2, ...; or with `site`, a single table.
            These parties replace the parties of the terms.
        program: the training algorithm, a generator that yields queries (default: boosting).
        seed: seed of the message order. The model does not depend on it.
        on_round: called after each round with its row of the history.
        nthread: number of threads. Parties compute one after another.
        callbacks: called after each round with its number, starting at 0, and its unrounded metrics by name.
            If one returns True, training ends after this round.
        on_table: called before training with the terms and each party's name and table.
        site: column of the single table that contains the name of each row's site. It is used as a feature
            only if the terms list it.
        models: party -> its part of the model (`Result.party_models`) that the terms continue.

    Raises:
        ConfigError: the terms are not for training, or the tables do not match the other arguments.
    """
    if not terms.task.makes_model:
        name, function = terms.task.name, terms.task.function
        raise ConfigError(
            "terms-not-training",
            f"these terms are for the task {name}, not for training; pass them to {function}",
        )
    if program is None and terms.session.program != "boosting":
        raise ConfigError(
            "program-not-given",
            f"the terms use program {terms.session.program!r}; pass it as simulate(..., program=...)",
        )
    settings = program, seed, on_round, nthread, callbacks, on_table, site, models
    return finish(*run_session(terms, shards, *settings))


def run_session(
    terms: Terms,
    shards: Mapping[str, Any] | Sequence[Any],
    program: Program | None = None,
    seed: int = 0,
    on_round: Callable[[Row], None] | None = None,
    nthread: int = 1,
    callbacks: Iterable[Callback] = (),
    on_table: OnTable | None = None,
    site: str | None = None,
    models: Mapping[str, PartyModel] | None = None,
) -> tuple[AggregatorSession, Meter, list[Part]]:
    """Run a session of any task in this process. The arguments are the same as for `simulate`. models: party
    -> its part of the model, if the session evaluates or continues one that the parties keep.

    Returns:
        The session after its end, its traffic, and the model parts that parties keep.
    """
    if nthread < 1:
        raise ConfigError("nthread-too-low", f"nthread is {nthread}, but must be at least 1")
    keep_freed_memory()
    shards = _by_party(terms, shards, site)
    if terms.keyholder is None or terms.keyholder in shards:
        terms = terms.with_parties(shards)
    else:  # a key holder without a table takes part without rows
        terms = terms.changed(parties=(*shards, terms.keyholder), keyholder_rows=False)
    meter = Meter(terms.parties)
    chosen = program or program_of(terms, ())
    session = AggregatorSession(
        "simulation", terms, chosen, INITIAL_STATE, draw=os.urandom, callbacks=callbacks
    )
    holders, parts = dict[str, Callable[[Terms, bytes], Holder]](), dict[str, Part]()
    with ExitStack() as opened:
        for name, data in shards.items():
            if is_collection(data):
                from fedboost.runtime.workers.holder import CollectionRows  # late, because it imports gRPC

                holders[name] = rows = CollectionRows(data, name, nthread)
                opened.callback(rows.close)
                continue
            model_of = None if models is None else lambda terms, name=name: models[name].booster
            holders[name] = holder_for(reader_of(data, terms, name, on_table), name, nthread, model_of)
        opened.callback(SEARCH.reset, SEARCH.set(Threads(nthread)))
        try:
            play(session, sites_of(terms, holders, parts), seed, meter, on_round)
        except DurabilityError as error:
            raise ConfigError("workers-lost", str(error)) from None
    return session, meter, [*parts.values()]


def play(
    session: AggregatorSession,
    sites: Mapping[str, Site],
    seed: int,
    meter: Meter,
    on_round: Callable[[Row], None] | None = None,
) -> None:
    """Deliver the messages between an aggregator's session and its parties until the session ends. seed: seed
    of the random order in which parties send; meter: counts the bytes of all messages; on_round: called after
    each round with its row of the history."""
    # `busy` are the parties that may have a message to send. A party without one waits for the aggregator, so
    # it leaves the list until the aggregator sends again. The session is over once no party is busy.
    nodes = {name: _Node(PartySession(site)) for name, site in sites.items()}
    _deliver(session.start(), nodes, meter)
    draw = random.Random(seed)
    busy = list(nodes)
    while busy:
        name = busy[int(draw.random() * len(busy))]
        reply = nodes[name].next_reply()
        if reply is None:
            busy.remove(name)
            continue
        meter.count(name, sent=size_from_party(reply))
        outbox = session.handle(name, reply)
        for row in meter.rows(session.history):
            if on_round:
                on_round(row)
        busy = _deliver(outbox, nodes, meter) or busy


def _by_party(terms: Terms, shards: Any, site: str | None) -> Mapping[str, Any]:
    """Return each party's table. Raises ConfigError if there are no parties, or if a single table is passed
    without `site`."""
    if site is not None:
        if isinstance(shards, (list, tuple)):
            raise ConfigError(
                "simulate-site-list",
                "site splits a single table by a column, but a list of tables was passed; remove site",
            )
        shards = split_by_site(as_table(shards), site, keep=site in terms.columns.features)
    elif isinstance(shards, str | Path):
        raise ConfigError(
            "simulate-one-table",
            f"{shards} is a single table; pass one per party: {{'north': {str(shards)!r}, ...}}",
        )
    elif isinstance(shards, Database) or hasattr(shards, "__arrow_c_stream__"):
        raise ConfigError(
            "simulate-one-table",
            "a single table was passed; pass one per party, {'north': table, ...}, or set site to the column "
            "that names each row's site",
        )
    by_party = dict(shards) if isinstance(shards, Mapping) else {}
    if not isinstance(shards, Mapping):
        by_party = {f"party-{i + 1}": shard for i, shard in enumerate(shards)}
    if not by_party:
        raise ConfigError("simulate-no-parties", "there are no parties; pass at least one table")
    return by_party


def terms_for_tables(terms: Terms, shards: Any) -> Terms:
    """Return a model's terms, adapted to a session with these tables in this process. The parties may differ
    from the parties in training. If there are fewer tables than the protection requires, `plain` is used
    instead, because nothing is hidden within one process."""
    names = shards if isinstance(shards, Mapping) else ()
    terms = terms.among(names, on_loss="wait", quorum=None, colluding=None)
    several = isinstance(shards, (Mapping, list, tuple))
    if not several or len(shards) >= terms.protection.min_parties:
        return terms
    return terms.changed(protection="plain", keyholder=None, keyholder_rows=True)


@dataclass
class _Node:
    """A simulated party: its session, its incoming messages, and the replies that it has not sent yet."""

    session: PartySession
    inbox: deque[ToParty] = field(default_factory=deque)
    _replies: Iterator[FromParty] = field(default_factory=lambda: iter(()))

    def next_reply(self) -> FromParty | None:
        """Return the party's next message, or None if it waits for the aggregator."""
        while True:
            for reply in self._replies:
                return reply
            if not self.inbox:
                return None
            self._replies = self.session.handle(self.inbox.popleft())


def sites_of(
    terms: Terms, holders: Mapping[str, Callable[[Terms, bytes], Holder]], parts: dict[str, Part]
) -> dict[str, Site]:
    """Return a simulated `Site` for each party of the terms, including a key holder that has no rows.

    Args:
        terms: terms of the session. If these require keys, the sites get keys of an in-memory consortium.
        holders: party name -> function that creates its holder (the code that computes answers from its
            rows).
        parts: dict that is filled with each party's part of the model.
    """
    credentials: dict[str, Credentials] = {}
    if terms.protection.hides or any(map(terms.relays_to, terms.parties)):
        now = datetime.now(UTC)
        signers, roots = in_memory(terms.parties, now)
        credentials = {name: Credentials(signer, roots, (), lambda: now) for name, signer in signers.items()}
    return {
        name: Site(
            name,
            holders.get(name),
            os.urandom,
            credentials.get(name),
            keep=lambda part: parts.update({part.party: part}),
        )
        for name in terms.parties
    }


def reader_of(data: object, terms: Terms, name: str, on_table: OnTable | None = None) -> Reader:
    """Return a function that reads a party's rows as a `Shard`. The rows are checked against the terms at
    once, and the result is kept for the first read. Raises Refused if the rows do not fit the terms."""
    stream = stream_of(data)
    data = data if stream is None else keep(stream)  # a stream can be read only once
    # The first read gets the shard of the check, which is not kept, so that no rows are in memory twice.
    # Later reads read the table again.
    shards, key = [_read(data, terms, name, on_table)], os.urandom(KEY_BYTES)
    read: Reader = lambda terms: shards.pop() if shards else _read(data, terms, name)  # noqa: E731
    return with_label_noise(read, name, lambda terms: key)


def _read(data: object, terms: Terms, name: str, on_table: OnTable | None = None) -> Shard:
    table = data if isinstance(data, ParquetTable) else as_table(data)
    shard = to_shard(table, terms, name)
    if on_table is not None:
        on_table(terms, name, table)
    del table
    give_back()  # a table that was read from a file is freed now
    return shard


def _deliver(outbox: Outbox, nodes: Mapping[str, _Node], meter: Meter) -> list[str]:
    """Put messages into the parties' inboxes, and count their bytes. Returns the parties to poll for replies:
    all parties if there was a message, otherwise none."""
    last, size = None, 0
    for name, message in outbox:
        nodes[name].inbox.append(message)
        if message is not last:  # a message to several parties is encoded once
            last, size = message, len(encode_to_party(message))
        meter.count(name, received=size)
    return list(nodes) if outbox else []


# ---- Predictions of rows whose columns are at different parties -----------------------------------------


@overload
def predict_jointly(
    party_models: Mapping[str, PartyModel],
    tables: Mapping[str, Any],
    min_common_rows: int | None = None,
    reasons: Literal[False] = False,
) -> Float64: ...
@overload
def predict_jointly(
    party_models: Mapping[str, PartyModel],
    tables: Mapping[str, Any],
    min_common_rows: int | None = None,
    *,
    reasons: Literal[True],
) -> tuple[Float64, Float64]: ...
def predict_jointly(
    party_models: Mapping[str, PartyModel],
    tables: Mapping[str, Any],
    min_common_rows: int | None = None,
    reasons: bool = False,
) -> Float64 | tuple[Float64, Float64]:
    """Predict the label holder's rows in this process, with the model parts of all parties.

    `fedboost predict --party` does the same over the network.

    Args:
        party_models: party -> its part of the model (`Result.party_models`).
        tables: party -> its table, in any form that `simulate` accepts, with the party's columns and the row
            ids. If a table lacks an id, the party's columns count as missing for that row.
        min_common_rows: minimum number of ids that each party must share (default: as in training).
        reasons: True to also return what each party's columns contribute to each row's margin.

    Returns:
        float64 [rows], or [rows, classes] for multi:softprob, in the order of the label holder's table. With
            `reasons`, a pair: these predictions, and the SHAP values of parties, float64 [rows, parties + 1],
            or [rows, classes, parties + 1]. Parties are in the order of the terms, the bias is last.

    Raises:
        ConfigError: model parts or tables are missing or cannot be used.
        SessionFailed: the session failed, e.g. because a party shares too few ids.
    """
    if not party_models:
        raise ConfigError("model-parts-missing", "there are no model parts; pass the part of each party")
    first = next(iter(party_models.values()))
    holder = first.terms.vertical.label_holder
    assert holder is not None
    if holder not in tables:
        raise ConfigError(
            "predict-table-missing",
            f"the table of label holder {holder} is missing; pass the rows to predict",
        )
    tables = {name: as_table(table) for name, table in tables.items()}
    agreed = terms_to_predict(first, rows_to_predict(tables[holder], first.terms), min_common_rows)
    models = {name: part.booster for name, part in party_models.items()}
    done = run_prediction(agreed, models, tables, reasons=reasons)
    return done.values if done.reasons is None else (done.values, done.reasons)


def run_prediction(
    terms: Terms,
    models: Mapping[str, Booster],
    tables: Mapping[str, Any],
    seed: int = 0,
    nthread: int = 1,
    reasons: bool = False,
) -> Prediction:
    """Run a prediction session in this process, and return the predictions of all rows of the label holder.

    Args:
        terms: terms under which the model was trained, with `predict_with` and `predict_rows` set.
        models: party -> the trees that it received in training.
        tables, seed, nthread: the same as for `simulate`. Tables must contain the row ids.
        reasons: as for `predict_jointly`.

    Raises:
        ConfigError: the terms are for training, or the model or table of a party is missing.
        SessionFailed: the session failed.
    """
    if terms.vertical.predict_rows is None:
        raise ConfigError(
            "terms-not-predicting",
            "these terms are for training; set predict_with and predict_rows to predict",
        )
    for what, given in (("model", models), ("table", tables)):
        if missing := [party for party in terms.parties if party not in given]:
            raise ConfigError(
                "predict-input-missing",
                f"the {what} of party {missing[0]} is missing; pass one for each party",
            )
    held: dict[str, Holder] = {}

    def holder_of(name: str) -> Callable[[Terms, bytes], Holder]:
        reader = reader_of(tables[name], terms, name)
        make = holder_for(reader, name, nthread, lambda terms: models[name], explains=reasons)

        def hold(terms: Terms, secret: bytes) -> Holder:
            held[name] = make(terms, secret)
            return held[name]

        return hold

    holders = {name: holder_of(name) for name in terms.parties}
    session = AggregatorSession("prediction", terms, program_of(terms, ()), INITIAL_STATE, draw=os.urandom)
    play(session, sites_of(terms, holders, {}), seed, Meter(terms.parties))
    if session.error is not None:
        raise session.error
    (block,) = terms.blocks
    holder = held[block.label_holder]
    assert isinstance(holder, PredictionHolder)
    assert holder.prediction is not None
    return holder.prediction
