"""A party of a session that predicts: each tells the label holder which leaves rows can reach.

The model is what this party was told of it (`queries.base`): its own splits whole, of all others who holds
them, and at the label holder the leaf values.

Promises: the margins are those of the whole model on a table with all columns, to the last bit, with missing
values where a feature holder does not have an id; leaf bits leave a feature holder only once it was shown
that their rows are those of the label holder, and the label holder shows a hash of ids for rows alone that
the aggregator, too, says they are; the same question gets the same bytes.
Refuses: another number of rows than the terms say, and a model of other columns (Refused); places that are
none, rows whose ids differ, leaf bits that no decisions give, which names their party, and questions of a
training (PeerError).
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedboost.boosting.queries.base import view_of
from fedboost.boosting.queries.ids import (
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    ReachQuery,
    check_batch,
    check_predicted,
    rows_of_batch,
)
from fedboost.boosting.queries.union import OfTurn
from fedboost.boosting.state import structure
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt import reach
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.reach import Decisions, Structure
from fedboost.gbdt.sampling import Mask
from fedboost.holders.alignment import Alignment
from fedboost.holders.shard import BaseHolder, Exchange, Shard, place_of
from fedboost.privacy import packing
from fedboost.protocol.contracts import Answering, Receive, Send
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

LEAF_BITS = "leaf bits"
"""Kind of a relay."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Rows of the label holder, in the order of its table.

    margins: float64 [rows], or [outputs, rows]; values: probabilities or values, float64 [rows], or [rows,
    outputs]; known: bool [feature holders, rows], True where that one has the row's id, in the order of
    `Block.feature_holders`.
    """

    margins: Float64 = field(repr=False)
    values: Float64 = field(repr=False)
    known: Mask = field(repr=False)


class PredictionHolder(BaseHolder):
    """The columns of a party in one session that predicts, and its part of the model."""

    def __init__(
        self,
        read: Callable[[Terms], Shard],
        terms: Terms,
        name: str,
        secret: bytes,
        model: Booster,
        nthread: int = 1,
    ) -> None:
        """read, secret: see `VerticalHolder`; model: as this party was told it (`told_of`)."""
        super().__init__(terms, nthread)
        view, block = place_of(terms, name)
        self.prediction: Prediction | None = None
        """At the label holder, once the rows are predicted."""
        self._me, self._block = name, block
        self._holder = terms.parties.index(block.label_holder)
        if model.features != terms.columns.features:
            raise Refused(f"party {name} has a model of other columns than those of the terms")
        check_batch(terms)
        self._shard = shard = read(terms)
        assert shard.ids is not None
        self._alignment = Alignment(terms, name, shard.ids, secret)
        if view.has_labels:
            check_predicted(terms, self._alignment.size)
        self._model = model
        self._structure = Structure.of(model.trees, terms.parties, view.holders)
        columns = view.own_features.tolist()
        self._decisions = Decisions.of(self._structure, name, model.trees, columns)

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return self._shard.rows

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of the table, and of the party's part of the model: 32 bytes."""
        model = structure(self._model.base_score, self._model.trees)
        hashed = self._shard.hashed(key, self._shard.columns, VERSION)
        return hmac.digest(key, packing.pack(hashed, model), "sha256")

    def answering(self, query: OfTurn) -> Answering:
        """This party's integers: int64 [query.cells]."""
        match query:
            case IdCountQuery():
                return self._alignment.count(query)
            case AlignQuery():
                check_predicted(self._terms, query.sizes[self._holder])
                return (yield from self._alignment.tokens(query))
            case ReachQuery() if self._me == self._block.label_holder:
                yield from self._predict(query)
                return np.array([query.total])
            case ReachQuery():
                yield from self._tell(query)
                return np.zeros(query.cells, np.int64)
        raise PeerError(f"{query.name} is asked in a session that predicts")

    # ---- a feature holder ---------------------------------------------------------------------------

    def _tell(self, query: ReachQuery) -> Exchange:
        """Say which rows are known here, have it shown that these are the label holder's, and only then say
        which leaves the rows reach."""
        rows, holder = (yield from self._alignment.tell_known(query)), self._block.label_holder
        known = rows != UNKNOWN
        if self._structure.size(self._me):
            features = np.full((query.total, len(self._shard.columns)), np.nan, np.float32)
            features[known] = self._features(rows[known])
            for batch in self._batches(query.total):
                bits = self._decisions.leaf_bits(features[batch], self._threads)
                yield Send(LEAF_BITS, (holder,), bits.tobytes(), len(bits))

    def _features(self, rows: Int64) -> Float32:
        """The values of these rows of the table: float32 [rows, columns], NaN = missing."""
        values = np.empty((rows.size, len(self._shard.columns)), np.float32)
        for number, column in enumerate(self._shard.columns):
            values[:, number] = column[0 : column.size][rows]
        return values

    # ---- the label holder ---------------------------------------------------------------------------

    def _predict(self, query: ReachQuery) -> Exchange:
        """Have each feature holder say which rows it knows, show it that these are the rows here, and join
        the leaf bits of all."""
        order, others = self._alignment.repeated(query, None), self._block.feature_holders
        times = self._alignment.rows_of_each(self._alignment.rows_at(query))
        known = np.repeat((yield from self._alignment.show(query)), times, axis=1)
        ends = np.concatenate([[0], np.cumsum(times)])
        features, parts = self._features(order), list[Float64]()
        base = None if self._shard.base_margin is None else self._shard.base_margin[order]
        for ids in self._batches(query.total):
            each = times[ids]
            batch = slice(ends[ids.start], ends[ids.start + each.size])
            bits = {self._me: self._decisions.leaf_bits(features[batch], self._threads).tobytes()}
            for other in others:
                if size := self._structure.size(other):
                    told = yield Receive(LEAF_BITS, other, each.size * size)
                    by_id = np.frombuffer(told, np.uint8).reshape(each.size, size)
                    bits[other] = np.repeat(by_id, each, axis=0).tobytes()
            leaves = reach.joined(self._structure, bits, int(each.sum()), self._threads)
            parts.append(reach.margins(self._model, leaves, None if base is None else base[batch]))
        listed = np.concatenate(parts, axis=-1)
        margins, has = np.empty_like(listed), np.empty_like(known)
        margins[..., order], has[:, order] = listed, known
        self.prediction = Prediction(margins, self._model.loss.predict(margins), has)

    def _batches(self, rows: int) -> list[slice]:
        """The rows whose leaf bits are relayed together, the same at all parties."""
        step = rows_of_batch(max(map(self._structure.size, self._structure.parties)))
        return [slice(first, first + step) for first in range(0, rows, step)]


def told_of(model: Booster, terms: Terms, party: str) -> Booster:
    """A whole model as a party was told it while it grew: without leaf values and base score but at the label
    holder, and of the splits of others who holds them."""
    view = view_of(terms, party)
    assert view is not None
    score = model.base_score if view.has_labels else UNTOLD_SCORE
    return replace(model, base_score=score, trees=tuple(map(view.tree, model.trees)))
