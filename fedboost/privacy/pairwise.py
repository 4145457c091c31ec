"""What two parties do with the secret that they share: the masks of `masked` and `paillier`, and relays.

The masked vector of party u, cell by cell modulo the cell's 2**bits, with ctx = everything that both ends
must agree on:

    y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)

Promises: the masks cancel in the sum of all parties of a tag, and in no smaller one; a stream is used once;
keys never leave the party, and are replaced after each vector.
Refuses: invalid public keys, and the tags that `PairMasks.check` names (PeerError).
"""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedboost.errors import PeerError, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing
from fedboost.privacy.packing import CHUNK_CELLS, Chunk, RandomBytes, Words, signed
from fedboost.privacy.protection import HiddenSums, Tag, check_newer

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

# ---- Shamir's secret sharing over the integers modulo 2**521 - 1 ----------------------------------------
# Promises: any `threshold` shares give the secret; fewer say nothing about it.
# Refuses: secrets and shares outside the field, points that are not distinct (PeerError).
# Source: A. Shamir, "How to share a secret", Communications of the ACM 22 (1979).


PRIME = (1 << 521) - 1
SHARE_BYTES = 66
"""A number below the prime, big-endian."""


def draw_number(draw: RandomBytes) -> int:
    """A uniformly random number below the prime."""
    while True:
        number = int.from_bytes(draw(SHARE_BYTES)) >> (8 * SHARE_BYTES - 521)
        if number < PRIME:
            return number


def split(secret: int, threshold: int, points: Sequence[int], draw: RandomBytes) -> list[int]:
    """The shares at these points of a random polynomial of degree threshold - 1 that is `secret` at 0."""
    if not (0 <= secret < PRIME and 0 < threshold <= len(points)):
        raise PeerError(f"cannot share among {len(points)} with threshold {threshold}")
    if len(set(points)) != len(points) or any(not 0 < point < PRIME for point in points):
        raise PeerError("the points of shares must be distinct and not zero")
    coefficients = [secret, *(draw_number(draw) for _ in range(threshold - 1))]
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares.append(value)
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """The secret, from point to share: the polynomial through them, at 0."""
    secret = 0
    for point, share in shares.items():
        if not (0 < point < PRIME and 0 <= share < PRIME):
            raise PeerError("a share is outside the field")
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret = (secret + share * above * pow(below, -1, PRIME)) % PRIME
    return secret


# ---- Which pairs of parties share masks: every pair of a small group ------------------------------------
# The pairs of a graph in a large one.
# Once the aggregator and the parties that collude have taken away all masks they know, the sum over each
# connected piece of the other parties is bare: the graph of the parties that do not collude must be
# connected. Here it is a circulant graph. The parties stand on a ring, and each is a neighbour of the
# `degree / 2` before it and behind it. Two runs of `degree / 2` colluding parties are needed to part the
# others, so fewer than `degree` never do, whoever they are. The places on the ring follow from hashes of
# the session's digest, in which is a fresh nonce of every party: more colluding parties, who were chosen
# before, part the others only by chance (`failure_bound`). The argument is in docs/decisions/0017-a-graph-
# of-pairs.md.
# Promises: the neighbours follow from the digest, the names and the number that may collude, so every party
# computes the same graph; of two parties either both are neighbours of each other or none is.


MAX_COMPLETE_PARTIES = 60
"""Up to so many parties every pair shares masks: any two that do not collude hide each other, and the masks
of 59 others are no burden to a party with a machine of its own."""
MAX_GRAPH_PARTIES = 1_000
"""So many were tried. What each greets with goes to all others: some gigabyte an attempt, and four with twice
as many."""
MIN_SHARE = 3
"""Beyond, one of so many parties may collude at least, whatever the terms say."""
MAX_FAILURE = 2.0**-100
"""Probability at most that colluding parties part the others. Whoever greets last may try other nonces until
the ring suits: 2**40 of them leave 2**-60."""


def neighbours(me: str, members: tuple[str, ...], colluding: int, session: bytes) -> tuple[str, ...]:
    """The parties that a party shares masks with, sorted. members: all parties, sorted; session: the digest
    of the attempt."""
    count = degree(len(members), colluding)
    if count == len(members) - 1:
        return tuple(member for member in members if member != me)
    places, ring = _ring(members, session)
    place, reach = places[me], count // 2
    steps = (step for step in range(-reach, reach + 1) if step)
    return tuple(sorted(ring[(place + step) % len(ring)] for step in steps))


@lru_cache(maxsize=64)
def degree(parties: int, colluding: int) -> int:
    """The neighbours of a party: the fewest, an even number, with which `colluding` parties, or a third of
    all if those are more, part the others with no more than MAX_FAILURE; all others in a group of up to
    MAX_COMPLETE_PARTIES, and where more than half may collude."""
    bad = max(colluding, parties // MIN_SHARE)
    if parties <= MAX_COMPLETE_PARTIES or 2 * bad > parties:
        return parties - 1
    for reach in range(1, parties // 2):
        if failure_bound(parties, bad, reach) <= MAX_FAILURE:
            return 2 * reach
    return parties - 1


def failure_bound(parties: int, colluding: int, reach: int) -> float:
    """A bound on the probability that so many colluding parties, placed at random on a ring where each is a
    neighbour of the `reach` before it and behind it, part the others.

    They do if and only if the ring has two runs of at least `reach` of them: then the others lie in two arcs
    that no pair crosses; and with one such run at most, the others, in the order of the ring behind it, are
    each a neighbour of the next. Two such runs begin with two disjoint windows of a party that does not
    collude and `reach` that do. There are n (n - 2 reach - 1) / 2 pairs of disjoint windows, and each has
    colluding parties in just those places with probability
    binomial(n - 2 reach - 2, colluding - 2 reach) / binomial(n, colluding). The bound is the sum over all
    pairs. It grows with the number that collude up to half of all, so that it holds for fewer, too.
    """
    if colluding < 2 * reach:
        return 0.0
    ways = comb(parties - 2 * reach - 2, colluding - 2 * reach)
    return parties * (parties - 2 * reach - 1) * ways / (2 * comb(parties, colluding))


@lru_cache(maxsize=1)
def _ring(members: tuple[str, ...], session: bytes) -> tuple[dict[str, int], tuple[str, ...]]:
    """The place of each party, and the parties in the order of the ring. The parties of a simulation have the
    same: it is kept for the one after."""
    lots = {
        member: hashlib.sha256(packing.pack(b"fedboost/1/ring", session, member.encode())).digest()
        for member in members
    }
    ring = tuple(sorted(members, key=lots.__getitem__))
    return {member: place for place, member in enumerate(ring)}, ring


# ---- Check cells: behind the cells of each masked chunk stands one more of 64 bits, which is 1 ----------
# Promises: in the opened sum each is the number of parties if their masks cancelled there, and any other
# number with a probability of 1 - 2**-64 if they did not. That says nothing of the cells themselves.
# Refuses: a sum whose check cells are other numbers (SessionFailed: whose fault it is is unknown).


CHECK = 1
"""The check cell of each party."""


def zeros(tag: Tag) -> Words:
    """A sum that nobody has added to, with check cells."""
    return np.zeros(tag.cells + len(tag.checked), np.uint64)


def with_checks(values: Int64, tag: Tag) -> Words:
    """A copy of a vector, as words with check cells."""
    words, whole = zeros(tag), values.view(np.uint64)
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        cells = checked.of(words)
        cells[:-1], cells[-1] = chunk.of(whole), CHECK
    return words


def add(total: Words, tag: Tag, number: int, packed: bytes) -> None:
    """Add one masked chunk to such a sum; PeerError if it cannot be one."""
    tag.chunk(number)
    checked = tag.checked[number]
    checked.add(checked.of(total), packed)


def checked_sum(words: Words, tag: Tag) -> Int64:
    """The sum of all parties of a tag, once its check cells were looked at; overwrites the words."""
    due = CHECK * len(tag.roster)
    if any(int(checked.of(words)[-1]) != due for checked in tag.checked):
        raise SessionFailed(
            f"the masks of the {due} parties did not cancel in turn {tag.turn}, so a party sent something "
            f"else than was due, or it was changed on the way; train again, and if that fails, too, see that "
            f"all sites and the aggregator run the same version of fedboost"
        )
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        chunk.of(words)[:] = checked.of(words)[:-1]
    return signed(words[: tag.cells], tag.segments)


# ---- Masks that every two parties share: they hide a party's vector in `masked` and `paillier` ----------


KEY_BYTES = 32
ONE_LEG, TWO_LEGS, BENEATH = b"one leg", b"two legs", b"beneath encryption"
"""Ways in which masks are used: each has streams of its own."""

MIN_GROUP_PARTIES = 3
"""With two parties each can subtract itself from any sum: below three, masks hide nothing from a party."""

MAX_GROUP_PARTIES = 100
"""Where every pair has its key and its mask: beyond this the work of all pairs is not worth it."""


@dataclass(frozen=True)
class Group:
    """The parties of a session, and how many of them may help the aggregator without learning anything.

    `threshold` answers open a lost party's self mask. It is chosen so that no two rosters of one turn can
    both be opened, whatever the aggregator and `colluding` parties do: two rosters would need
    2 * threshold - colluding > parties honest answers.
    """

    members: tuple[str, ...]
    colluding: int

    @classmethod
    def of(cls, parties: tuple[str, ...], colluding: int | None = None) -> "Group":
        """Make a group. One colluding party is tolerated from four parties on, unless the terms say
        otherwise."""
        return cls(tuple(sorted(parties)), int(len(parties) >= 4) if colluding is None else colluding)

    @property
    def majority(self) -> int:
        """Parties of which any two sets have an honest one in common, and each has two."""
        return max((len(self.members) + self.colluding) // 2 + 1, self.colluding + 2)

    @property
    def threshold(self) -> int:
        """Shares that recover a self mask."""
        return self.majority

    @property
    def min_roster(self) -> int:
        """Parties that a sum is of, at least: enough to open it, and not two if the group has more."""
        return max(self.threshold, min(MIN_GROUP_PARTIES, len(self.members)))

    @property
    def min_signers(self) -> int:
        """Parties that sign a model, at least: two models cannot have so many each."""
        return max(self.majority, min(MIN_GROUP_PARTIES, len(self.members)))

    def peers(self, me: str, session: bytes, every_pair: bool) -> tuple[str, ...]:
        """The parties that a party shares masks with: its neighbours in the graph of pairs, or all others.
        session: the digest of the attempt."""
        if every_pair:
            return tuple(member for member in self.members if member != me)
        return neighbours(me, self.members, self.colluding, session)

    def point(self, party: str) -> int:
        """The point of a party's share."""
        return self.members.index(party) + 1

    def digest(self) -> bytes:
        """Bytes of the group, to which the session's name is bound."""
        names = (member.encode() for member in self.members)
        return packing.pack(packing.number(self.majority), packing.number(self.colluding), *names)


# ---- what the ends of a protection are made from ---------------------------------------------------------


@dataclass(frozen=True)
class PartySetup:
    """The facts that a sealer is made from, once the parties have met.

    me: the name of this party; group: all parties of the session; session: the digest of the attempt;
    pair_keys: returns the key shared with each of some other parties, and may be called once; draw:
    cryptographic randomness; public: the key that sums are encrypted under; secret: the pair it belongs to,
    at the key holder alone; max_openings: sums that the key holder opens; sparse: zeros may be left out, so
    that lengths depend on rows; shrinks: the session may go on without parties that were lost.
    """

    me: str
    group: Group
    session: bytes
    pair_keys: Callable[[Collection[str]], dict[str, bytes]]
    draw: RandomBytes
    public: "Public | None" = None
    secret: "Secret | None" = None
    max_openings: int = 0
    sparse: bool = False
    shrinks: bool = False


@dataclass(frozen=True)
class AggregatorSetup:
    """The facts that an opener is made from, besides the tag of its turn; as in `PartySetup`.

    keyholder: the name of the party that has the secret key.
    """

    group: Group
    session: bytes
    draw: RandomBytes | None = None
    public: "Public | None" = None
    keyholder: str | None = None
    shrinks: bool = False
    hidden: HiddenSums | None = None
    """Sums of this turn that are reported encrypted."""


# ---- keys of a session ----------------------------------------------------------------------------------


class Handshake:
    """The fresh key of a party in a session; in memory only, until the pairs have their keys."""

    def __init__(self, draw: RandomBytes) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(draw(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def pair_keys(
        self, me: str, publics: Mapping[str, bytes], session: bytes, peers: Collection[str]
    ) -> dict[str, bytes]:
        """The key shared with each of these parties that greeted, bound to the session's transcript and to
        both names.

        Forgets the private key, from which the first keys could be derived again.
        """
        private, self._private = self._private, None
        if private is None:
            raise PeerError("the keys of this session were derived already")
        keys = {}
        for peer in (publics.keys() & peers) - {me}:
            try:
                secret = private.exchange(X25519PublicKey.from_public_bytes(publics[peer]))
            except ValueError:
                raise PeerError(f"the key of party {peer} is no X25519 key") from None
            names = (name.encode() for name in sorted((me, peer)))
            info = packing.pack(b"fedboost/2/pair", *names)
            keys[peer] = HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(secret)
        return keys


@lru_cache(maxsize=1)  # the parties of a simulation have the same
def context(way: bytes, session: bytes, group: Group, tag: Tag) -> bytes:
    """Everything both ends must agree on for masks to cancel and shares to open: 32 bytes, which are public.

    session: the digest of the attempt, in which session, attempt, terms and greetings are; the check cells
    follow from the shape.
    """
    roster = packing.pack(*(party.encode() for party in sorted(tag.roster)))
    shape = (number for segment in tag.segments for number in (segment.cells, segment.bits))
    numbers = (tag.turn, tag.attempt, *shape)
    return hashlib.sha256(
        packing.pack(
            b"fedboost/3/context",
            way,
            session,
            group.digest(),
            roster,
            tag.transcript,
            *map(packing.number, numbers),
        )
    ).digest()


def derive(key: bytes, what: bytes, *about: bytes) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869) to 32 bytes, which is one block of it."""
    return _expand(key, packing.pack(what, *about))


def _expand(key: bytes, info: bytes) -> bytes:
    return hmac.digest(key, info + b"\x01", "sha256")


class Stream:
    """AES-256 in counter mode under a key that is used for one vector: the mask of its chunks in order.

    It is the counter mode inside GCM, whose tag is not used: OpenSSL makes it faster than CTR itself
    (docs/decisions/0006-masks-from-gcms-counter-mode.md). GCM allows 2**36 bytes under a key.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.GCM(_NONCE)).encryptor()

    def next(self, size: int, scratch: memoryview | None = None) -> memoryview:
        """The next bytes of the mask, in `scratch` if there is one."""
        out = memoryview(bytearray(size)) if scratch is None else scratch[:size]
        self._encryptor.update_into(_ZEROS[:size], out)
        return out


_ZEROS = memoryview(bytes(8 * (CHUNK_CELLS + 1)))  # no chunk is larger
_NONCE = bytes(12)
"""Always the same: a key is used for one stream."""


def scratch_of(tag: Tag) -> memoryview:
    """Memory for the mask of any chunk."""
    return memoryview(bytearray(max(chunk.size for chunk in tag.checked)))


def masked_chunks(
    values: Int64, tag: Tag, streams: Iterable[tuple[Stream, bool]]
) -> Iterator[tuple[Chunk, Words]]:
    """Each chunk with its masked cells and check cell, uint64 [cells], of which the lowest bits are right.
    streams: each with True if it is added, False if it is subtracted; nothing else holds them."""
    scratch, whole, streams = scratch_of(tag), with_checks(values, tag), tuple(streams)
    for chunk in tag.checked:
        words = chunk.of(whole)
        for stream, added in streams:
            operation = chunk.add if added else chunk.subtract
            operation(words, stream.next(chunk.size, scratch))
        yield chunk, words


class PairMasks:
    """The keys of a party with those that it shares masks with, and its masks for one tag after the other."""

    def __init__(self, setup: PartySetup, way: bytes) -> None:
        self._me, self._group, self._session = setup.me, setup.group, setup.session
        self._keys = setup.pair_keys(setup.group.peers(setup.me, setup.session, way != ONE_LEG))
        self._way = way
        self.tag: Tag | None = None
        """The tag of the last masked vector."""
        self.ctx = b""
        """The context of that tag."""

    def __repr__(self) -> str:
        return f"PairMasks({self._me!r})"

    def check(self, tag: Tag) -> None:
        """Raise PeerError for a roster with strangers, without this party, or with a party twice, and for a
        turn or attempt that is not greater than the last."""
        if self.tag is None or tag.roster != self.tag.roster:
            roster = set(tag.roster)
            if self._me not in roster or not roster <= set(self._group.members):
                raise PeerError("the roster has strangers, or lacks this party")
            if len(roster) != len(tag.roster):
                raise PeerError("the roster names a party twice")
        check_newer(tag, self.tag)

    def streams(self, tag: Tag) -> list[tuple[Stream, bool]]:
        """Move to a tag that `check` allows: its masks, each with True if it is added. The keys that made
        them are replaced."""
        self.begin(tag)
        streams = self.masks(tag)
        self.replace_keys()
        return streams

    def begin(self, tag: Tag) -> None:
        """Move to a tag that `check` allows."""
        self.tag, self.ctx = tag, context(self._way, self._session, self._group, tag)

    def masks(self, tag: Tag) -> list[tuple[Stream, bool]]:
        """The masks of the last tag, each with True if it is added."""
        streams = []
        for peer in sorted(self._keys.keys() & tag.roster):
            low, high = sorted((self._me, peer))
            streams.append((Stream(self.derived(peer, b"pair", low, high)), peer > self._me))
        return streams

    def derived(self, peer: str, what: bytes, *names: str) -> bytes:
        """A key for one use within the last tag, derived from the key shared with a peer."""
        return derive(self._keys[peer], what, self.ctx, *(name.encode() for name in names))

    def replace_keys(self) -> None:
        """Replace every key, so that no earlier vector can be opened with this party's memory later."""
        info = packing.pack(b"next", self.ctx)
        self._keys = {peer: _expand(key, info) for peer, key in self._keys.items()}


def check_whole(tag: Tag, group: Group) -> None:
    """Raise PeerError unless the roster is all parties, each once."""
    if len(tag.roster) != len(group.members) or set(tag.roster) != set(group.members):
        raise PeerError(f"a roster of {len(tag.roster)} parties that is not all {len(group.members)}")


# ---- Relays: bytes of one party for some others, which the aggregator passes on and cannot read ---------
# The bytes are encrypted once, under a fresh key; that key is encrypted for each receiver under a key
# derived from the secret that sender and receiver share, with the ciphertext as associated data. So nobody
# but the receivers reads them, and none of these can put others in their place.
#
# A key is used for one encryption; bytes open only for the receiver, sender and context that they were sealed
# for, and are refused otherwise (PeerError).


_TAG_BYTES = 16


def sealed_size(content: int, receivers: Iterable[str]) -> int:
    """Number of bytes that `seal` makes of so many for these receivers."""
    wrapped = 2 * packing.LENGTH_BYTES + KEY_BYTES + _TAG_BYTES
    return (
        packing.LENGTH_BYTES
        + content
        + _TAG_BYTES
        + sum(wrapped + len(party.encode()) for party in receivers)
    )


MIN_SEALED_BYTES = sealed_size(0, ["a"])
"""Fewest bytes of anything sealed."""


def seal(content: bytes, sender: str, keys: Mapping[str, bytes], context: bytes, draw: RandomBytes) -> bytes:
    """Encrypt for the parties of `keys`, each with the secret that it shares with the sender. context: all
    that both ends must agree on; never the same twice."""
    key = draw(KEY_BYTES)
    ciphertext = AESGCM(key).encrypt(_NONCE, content, context)
    wrapped = []
    for party, secret in keys.items():
        wrapper = _wrapper(secret, sender, party, context)
        wrapped += [party.encode(), wrapper.encrypt(_NONCE, key, ciphertext)]
    return packing.pack(ciphertext, *wrapped)


def open_sealed(sealed: bytes, sender: str, receiver: str, secret: bytes, context: bytes) -> bytes:
    """Decrypt what `seal` encrypted for this receiver. PeerError if it is for another, or of another sender
    or context."""
    try:
        ciphertext, *wrapped = packing.unpack(sealed)
        keys = dict(zip(wrapped[::2], wrapped[1::2], strict=True))
        wrapper = _wrapper(secret, sender, receiver, context)
        key = wrapper.decrypt(_NONCE, keys[receiver.encode()], ciphertext)
        return AESGCM(key).decrypt(_NONCE, ciphertext, context)
    except (PeerError, ValueError, KeyError, InvalidTag):
        raise PeerError(
            f"what party {sender} relayed does not open: it was changed on the way, or is of another turn "
            f"or tree"
        ) from None


def _wrapper(secret: bytes, sender: str, receiver: str, context: bytes) -> AESGCM:
    return AESGCM(derive(secret, b"fedboost/4/relay", sender.encode(), receiver.encode(), context))
