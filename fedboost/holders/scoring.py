"""Scores of single rows, at once: the label holder asks, and the other parties of a model answer with leaf
bits. Rows are found by an oblivious pseudorandom function of their ids, so there is no matching per request.

1. Both ends greet each other, signed, with fresh keys (`Link`). All later messages are sealed under them.
2. Once per model and table: the feature holder sends its ids as points, multiplied by its secret, the label
   holder multiplies them by its own, and the feature holder stores tokens (short hashes) of the result with
   the numbers of its rows (`TokenTable`). It checks that all points were multiplied by the same number.
3. For each request, the label holder sends its ids as points, multiplied by its secret. The feature holder
   multiplies them by its own, looks up the tokens, and sends the leaf bits of these rows. An id that it does
   not have is answered as a row of missing values, with as many bytes.

Guarantees: margins equal those of the whole model, to the last bit. A request costs one round trip. The label
holder receives no id, and no product that it could compare with ids of its own. With a token table and only
one of the two secrets, an id cannot be found in it by guessing.
Not guaranteed: the feature holder learns which of its people are scored, and when. The label holder may guess
from leaf bits whether the feature holder has an id, so a request for one row is a look-up.
Raises: PeerError for messages that are not authentic, out of order or malformed; Refused for requests beyond
a limit."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt import reach
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.threads import Threads
from fedboost.holders.column_rows import decisions_of
from fedboost.holders.shard import RowIds, Shard
from fedboost.privacy import packing
from fedboost.privacy.identity import identify, verify
from fedboost.privacy.packing import RandomBytes, number
from fedboost.privacy.pairwise import Handshake, derive
from fedboost.privacy.points import (
    POINT_BYTES,
    TOKEN_WORDS,
    check_points,
    list_of,
    multiply,
    points_of,
    tokens_of,
)
from fedboost.protocol.key_exchange import PARTY, Credentials
from fedboost.terms.terms import Terms

# ---- A sealed link between two parties, for one model ---------------------------------------------------
# Guarantees: keys are fresh in each direction, and known only to the owners of the two certificates. A
# message is accepted once, and in the order in which it was sent. A greeting that someone repeats leads to
# keys that only its first sender could have computed.

_DOMAIN = b"fedboost/1/score"
_NONCE_BYTES = 12
_PART_BYTES = 1 << 19
"""Maximum number of bytes of a message that travel in one frame."""
MAX_BYTES = 1 << 26
"""Maximum number of bytes of a message."""


class Link:
    """One end of a link: first `greeting` is sent, then the other end's passed to `meet`.

    me, peer: names of the parties; asks: True at the label holder; model: id of the model; draw: source of
    cryptographic randomness."""

    def __init__(
        self, me: str, peer: str, asks: bool, model: bytes, credentials: Credentials, draw: RandomBytes
    ) -> None:
        self.peer = peer
        self._me, self._asks, self._model, self._credentials = me, asks, model, credentials
        self._handshake, signer = Handshake(draw), credentials.signer
        public = self._handshake.public
        signature = signer.sign(_greeted(me, peer, model, public, signer.certificate))
        self.greeting = packing.pack(public, signer.certificate, signature)
        self._keys: tuple[AESGCM, AESGCM] | None = None
        self._sent = self._received = 0
        self._parts = bytearray()
        """The parts of a message whose last part has not arrived."""

    def meet(self, greeting: bytes) -> None:
        """Derive the keys from the other end's greeting. Raises PeerError if it is not the peer's."""
        credentials, fields = self._credentials, packing.unpack(greeting)
        if len(fields) != 3:
            raise PeerError("greeting-invalid", f"the greeting of party {self.peer} is malformed")
        public, certificate, signature = fields
        known = identify(certificate, credentials.roots, credentials.clock(), credentials.denied)
        if (known.role, known.name) != (PARTY, self.peer):
            raise PeerError(
                "greeting-other-party",
                f"the greeting was signed by {known.role} {known.name}, not by party {self.peer}",
            )
        verify(known, _greeted(self.peer, self._me, self._model, public, certificate), signature)
        both = [hashlib.sha256(one).digest() for one in (self.greeting, greeting)]
        about = packing.pack(self._model, *(both if self._asks else reversed(both)))
        (key,) = self._handshake.pair_keys(self._me, {self.peer: public}, about, [self.peer]).values()
        ways = [AESGCM(derive(key, _DOMAIN + way)) for way in (b"/ask", b"/answer")]
        self._keys = (ways[0], ways[1]) if self._asks else (ways[1], ways[0])

    def seal(self, content: bytes) -> list[bytes]:
        """Encrypt a message. Returns the frames to send."""
        assert self._keys is not None
        frames = []
        for begin in range(0, len(content), _PART_BYTES):
            part, is_last = content[begin : begin + _PART_BYTES], begin + _PART_BYTES >= len(content)
            self._sent += 1
            nonce = self._sent.to_bytes(_NONCE_BYTES)
            frames.append(self._keys[0].encrypt(nonce, bytes([is_last]) + part, None))
        return frames

    def open(self, sealed: bytes) -> bytes | None:
        """Decrypt the next frame. Returns the message, or None if it has further parts. Raises PeerError if
        the frame is not the one that the peer sealed next, or if the message is too long."""
        if self._keys is None:
            raise PeerError("greeting-missing", f"party {self.peer} sent a message before its greeting")
        try:
            content = self._keys[1].decrypt((self._received + 1).to_bytes(_NONCE_BYTES), sealed, None)
        except InvalidTag:
            raise PeerError(
                "link-not-authentic",
                f"a message of party {self.peer} was changed, repeated or left out on its way",
            ) from None
        self._received += 1  # only now: a false message must not take the place of one that is left out
        self._parts += content[1:]
        if len(self._parts) > MAX_BYTES:
            raise PeerError("link-long", f"party {self.peer} sent a message of over {MAX_BYTES} bytes")
        if content[:1] != bytes([True]):
            return None
        whole, self._parts = bytes(self._parts), bytearray()
        return whole


def _greeted(sender: str, receiver: str, model: bytes, public: bytes, certificate: bytes) -> bytes:
    """Return the text that the sender of a greeting signs."""
    names = sender.encode(), receiver.encode()
    return packing.pack(_DOMAIN, *names, model, public, hashlib.sha256(certificate).digest())


# ---- Messages -------------------------------------------------------------------------------------------
#     label holder                            feature holder
#     HELLO(commitment of its secret)   ->
#                                       <-    LIST(all, points)          if it has no table for this secret
#     MULTIPLIED(points)                ->                               and so on, part by part
#                                       <-    READY(leaf bits of a row of missing values)
#     ASK(number, points)               ->
#                                       <-    ANSWER(number, leaf bits) or REFUSAL(number, code, sentence)

HELLO, LIST, MULTIPLIED, READY, ASK, ANSWER, REFUSAL = b"HLMRAWF"
MAX_POINTS = 8192
"""Maximum number of points in a message, a quarter of a megabyte."""
TOKEN_BYTES = 4 * TOKEN_WORDS


def message(kind: int, *fields: bytes) -> bytes:
    return bytes([kind]) + packing.pack(*fields)


def fields_of(content: bytes, kind: int, count: int, sender: str) -> list[bytes]:
    """Return the fields of a message. Raises PeerError unless it is of this kind, with `count` fields."""
    if content[:1] != bytes([kind]) or len(fields := packing.unpack(content[1:])) != count:
        raise PeerError("score-message", f"party {sender} sent a message that is not due")
    return fields


def _refusal(about: bytes, error: Refused) -> bytes:
    return message(REFUSAL, about, error.code.encode(), error.public.encode())


# ---- The feature holder: its token table, and its answers -----------------------------------------------


class TokenTable:
    """Rows of a feature holder by token.

    tokens: 16 bytes each, in the order of the rows; made_for: hash of everything that the table depends on:
    the ids in order, the feature holder's secret, and the commitment to the label holder's."""

    def __init__(self, tokens: npt.NDArray[np.bytes_], made_for: bytes) -> None:
        self.tokens, self.made_for = tokens, made_for
        self._order: Int64 = np.argsort(tokens, kind="stable")

    def find(self, products: bytes) -> Int64:
        """Return the row of each id, int64 [ids], or -1 if there is none. products: the ids' points,
        multiplied by both secrets."""
        wanted = _as_keys(products)
        places = np.searchsorted(self.tokens, wanted, sorter=self._order)
        rows = self._order[np.minimum(places, self.tokens.size - 1)]
        return np.where(self.tokens[rows] == wanted, rows, -1)


def _as_keys(points: bytes) -> npt.NDArray[np.bytes_]:
    """Return the token of each point as a 16-byte string, which numpy compares byte by byte."""
    return np.ascontiguousarray(tokens_of(points)).view(f"S{TOKEN_BYTES}").reshape(-1)


class End:
    """Base class of both ends of a link.

    terms: terms under which the model was trained; name: name of this party; model: its part of the model;
    id: the model's id; secret: its secret for this model, 32 bytes."""

    def __init__(self, terms: Terms, name: str, model: Booster, id: bytes, secret: bytes) -> None:
        (self._block,) = terms.blocks
        self._model, self._context, self._threads = model, _DOMAIN + id, Threads(1)  # a request is short
        self._scalar = derive(secret, _DOMAIN + b"/multiply")
        self._decisions = decisions_of(terms, name, model)


class FeatureEnd(End):
    """The feature holder's end of a link with the label holder.

    Args:
        rows: its rows, with ids.
        fewest: minimum number of this party's ids in a request; 1 allows requests for single rows.
        charge: records durably that a request about so many ids is being answered; raises Refused if it
            exceeds a limit.
        begin_list: records that a list of the ids is being sent; raises Refused if it was sent too often.
        table: a token table that was made earlier, which is used if it still applies.
    """

    def __init__(
        self,
        *about: Any,
        rows: Shard,
        fewest: int,
        charge: Callable[[int], None],
        begin_list: Callable[[], None],
        table: TokenTable | None = None,
    ) -> None:
        super().__init__(*about)
        assert rows.ids is not None
        self.table = table
        """The token table, or None until it has been made."""
        self._peer, self._ids, self._values = self._block.label_holder, rows.ids, rows.values()
        self._fewest, self._charge, self._begin_list = fewest, charge, begin_list
        self._digest = hashlib.sha256(packing.pack(*self._ids)).digest()
        self._made_for = self._listed = b""
        self._products = bytearray()
        """The points of the list that the label holder has multiplied."""

    def take(self, content: bytes) -> bytes:
        """Return the answer to a message of the label holder. Raises PeerError if it is not due or
        malformed."""
        if content[:1] == bytes([HELLO]):
            return self._begin(*fields_of(content, HELLO, 1, self._peer))
        if self.table is None or self.table.made_for != self._made_for:
            return self._complete(*fields_of(content, MULTIPLIED, 1, self._peer))
        return self._answer(self.table, *fields_of(content, ASK, 2, self._peer))

    def _begin(self, commitment: bytes) -> bytes:
        self._made_for, self._listed = derive(self._scalar, self._context, self._digest, commitment), b""
        self._products.clear()
        if self.table is not None and self.table.made_for == self._made_for:
            return self._ready()
        try:
            self._begin_list()
        except Refused as error:
            return _refusal(number(0), error)
        # Each point is listed twice, once multiplied by another secret, in a secret order. If the label
        # holder multiplied places by different numbers, it could later find rows by their place, without
        # their ids. It does not know which two places belong together.
        points = multiply(points_of(self._ids, self._context), self._scalar)
        both = np.frombuffer(points + multiply(points, self._shadow), np.uint8).reshape(-1, POINT_BYTES)
        self._listed = both[self._order].tobytes()
        return self._next_part()

    @property
    def _part(self) -> bytes:
        """The part of the list that the label holder multiplies now."""
        return self._listed[len(self._products) :][: MAX_POINTS * POINT_BYTES]

    def _next_part(self) -> bytes:
        """Return the next part of the list. One part is on its way at a time, so that neither end has to read
        while it writes."""
        return message(LIST, number(len(self._listed) // POINT_BYTES), self._part)

    def _complete(self, part: bytes) -> bytes:
        if not part or len(part) != len(self._part):
            raise PeerError("points-count", f"party {self._peer} returned another number of points")
        self._products += part
        if len(self._products) < len(self._listed):
            return self._next_part()
        listed, self._listed = np.frombuffer(bytes(self._products), f"V{POINT_BYTES}"), b""
        self._products.clear()
        check_points(listed.tobytes(), 2 * len(self._ids), self._peer)
        both = np.empty_like(listed)
        both[self._order] = listed
        products, shadows = (half.tobytes() for half in np.split(both, 2))
        if multiply(products, self._shadow) != shadows:
            raise PeerError(
                "score-uneven-table",
                f"party {self._peer} multiplied the points of different ids by different numbers",
            )
        self.table = TokenTable(_as_keys(products), self._made_for)
        return self._ready()

    @property
    def _shadow(self) -> bytes:
        """The secret by which the second point of each id is multiplied."""
        return derive(self._scalar, b"shadow", self._made_for)

    @property
    def _order(self) -> Int64:
        """The secret order of a list: of the points of all ids, then of their second points."""
        stream = hashlib.shake_256(derive(self._scalar, b"order", self._made_for))
        return np.argsort(np.frombuffer(stream.digest(16 * len(self._ids)), np.uint64))

    def _ready(self) -> bytes:
        return message(READY, self._bits(np.array([-1])))

    def _answer(self, table: TokenTable, about: bytes, points: bytes) -> bytes:
        """Return the leaf bits of the rows with these ids, in the order of the points."""
        count = len(points) // POINT_BYTES
        check_points(points, count, self._peer)
        if not 0 < count <= MAX_POINTS or len(about) != len(number(0)):
            raise PeerError("points-count", f"party {self._peer} asks about {count} ids at once")
        try:
            self._charge(count)  # also what is refused below: whether it is refused tells something
            rows = table.find(multiply(points, self._scalar))
            known = np.unique(rows[rows >= 0]).size  # an id has several points with the same product
            if self._fewest > 1 and known < self._fewest:
                raise Refused(
                    "score-few-known",
                    f"fewer than {self._fewest} ids of the request are known, but this party does not answer "
                    f"about fewer",
                )
        except Refused as error:
            return _refusal(about, error)
        return message(ANSWER, about, self._bits(rows))

    def _bits(self, rows: Int64) -> bytes:
        """Return the leaf bits of rows; -1 stands for a row of missing values."""
        features: Float32 = self._values[np.maximum(rows, 0)]
        features[rows < 0] = np.nan
        return self._decisions.leaf_bits(features, self._threads).tobytes()


# ---- The label holder: its requests, and the scores -----------------------------------------------------


class Scorer(End):
    """Scores rows from the label holder's columns and the other parties' leaf bits.

    most_ids: maximum number of ids of a feature holder; begin_list: records that a party's list begins;
    raises Refused if it lists its ids too often."""

    def __init__(self, *about: Any, most_ids: int, begin_list: Callable[[str], None]) -> None:
        super().__init__(*about)
        self._me, size = self._block.label_holder, self._decisions.structure.size
        self.others = tuple(party for party in self._block.feature_holders if size(party))
        """Parties whose columns the model uses."""
        self._most_asked = min(MAX_POINTS, MAX_BYTES // (1 + max(map(size, self.others), default=0)))
        self._most_ids, self._begin_list = most_ids, begin_list
        self._hello = message(HELLO, derive(self._scalar, b"commitment"))
        self._left: dict[str, int] = {}
        """Party -> number of its points that are still due, once its list has begun; -1 before that."""

    def hello(self, party: str) -> bytes:
        """Return the first message to a feature holder, after which it may send its list once."""
        self._left[party] = -1
        return self._hello

    def multiplied(self, content: bytes, sender: str) -> bytes:
        """Return a part of a feature holder's list, multiplied by the secret. Raises PeerError if the list is
        malformed, or has more ids than announced or allowed: a party could enter ids that it guessed. Raises
        Refused if the party lists ids too often: it could enter others each time."""
        announced, part = fields_of(content, LIST, 2, sender)
        total, count, left = int.from_bytes(announced), len(part) // POINT_BYTES, self._left.get(sender, 0)
        if len(announced) != len(number(0)) or total > 2 * self._most_ids:  # two points for each id
            raise PeerError(
                "score-many-ids",
                f"party {sender} lists more than {self._most_ids:,} ids, the limit of this site "
                f"(max_foreign_ids)",
            )
        if left < 0:
            self._begin_list(sender)
            left = total
        if not 0 < count <= min(left, MAX_POINTS):
            raise PeerError("points-count", f"party {sender} sent more points than it announced, or none")
        self._left[sender] = left - count
        return message(MULTIPLIED, multiply(part, self._scalar, list_of(sender)))

    def question(self, ids: RowIds) -> tuple[bytes, Int64]:
        """Return the points of distinct ids, and the place of each row's id among them, int64 [rows]. Raises
        ConfigError if there are too many for one answer."""
        places: dict[bytes, int] = {}
        of_row = np.array([places.setdefault(row_id, len(places)) for row_id in ids], np.int64)
        if len(places) > self._most_asked:
            raise ConfigError(
                "score-many-rows", f"with this model, a request may have at most {self._most_asked} ids"
            )
        return multiply(points_of([*places], self._context), self._scalar), of_row

    def score(
        self,
        rows: Shard,
        of_row: Int64,
        told: Mapping[str, bytes],
        without: Collection[str] = (),
        reasons: bool = False,
    ) -> tuple[Float64, Float64 | None]:
        """Combine the leaf bits of all parties.

        Args:
            rows: the label holder's columns of these rows.
            of_row: result of `question`.
            told: party -> its leaf bits of each id, or of a single row of missing values if the party is
                among `without`.
            without: parties that did not answer.
            reasons: True to also compute what each party contributes.

        Returns:
            Probabilities, or predicted values of other objectives, float64 [rows] or [rows, outputs]; and
            `reach.reasons`, or None.

        Raises:
            PeerError: a party sent a wrong number of bytes.
        """
        structure = self._decisions.structure
        bits = {self._me: self._decisions.leaf_bits(rows.values(), self._threads).tobytes()}
        for party in self.others:
            ids, size = 1 if party in without else int(of_row.max()) + 1, structure.size(party)
            if len(told[party]) != ids * size:
                raise PeerError(
                    "leaf-bits-length",
                    f"party {party} sent {len(told[party])} bytes of leaf bits for {ids} ids",
                )
            by_id = np.frombuffer(told[party], np.uint8).reshape(ids, size)
            bits[party] = by_id[np.minimum(of_row, ids - 1)].tobytes()
        leaves = reach.joined(structure, bits, rows.rows, self._threads)
        values = self._model.loss.predict(reach.margins(self._model, leaves, rows.base_margin))
        about = self._model, structure, bits, rows.rows, rows.base_margin, self._threads
        return values, reach.reasons(*about) if reasons else None
