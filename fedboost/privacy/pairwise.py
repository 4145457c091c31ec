"""Keys that two parties share, and their uses: the masks of `masked` and `paillier`, and relays (bytes for
other parties, which the aggregator forwards).

The masked vector of party u, cell by cell modulo the cell's 2**bits, where ctx stands for everything that
both ends must agree on:

    y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)

Guarantees: the masks cancel in the sum over all parties of a tag, and in no sum over fewer parties. Each
stream is used only once. Keys never leave the party, and are replaced after each vector. Raises: PeerError
for invalid public keys, and for the tags that `PairMasks.check` rejects."""

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
from fedboost.privacy import kernels, packing
from fedboost.privacy.packing import Chunk, RandomBytes, Words, signed
from fedboost.privacy.protection import HiddenSums, Tag, check_newer

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

# ---- Shamir's secret sharing over the integers modulo 2**521 - 1 ----------------------------------------
# Guarantees: any `threshold` shares determine the secret; fewer reveal nothing about it.
# Raises: PeerError for secrets and shares outside the field, and for points that are not distinct.
# Source: A. Shamir, "How to share a secret", Communications of the ACM 22 (1979).


PRIME = (1 << 521) - 1
SHARE_BYTES = 66
"""Size in bytes of a share: a number below the prime, big-endian."""


def draw_number(draw: RandomBytes) -> int:
    """Draw a uniformly random number below the prime."""
    while True:
        number = int.from_bytes(draw(SHARE_BYTES)) >> (8 * SHARE_BYTES - 521)
        if number < PRIME:
            return number


def split(secret: int, threshold: int, points: Sequence[int], draw: RandomBytes) -> list[int]:
    """Split a secret into one share per point, so that any `threshold` shares determine the secret. The
    shares are the values of a random polynomial of degree threshold - 1 whose value at 0 is the secret.
    Raises PeerError if the secret, threshold or points are invalid."""
    if not (0 <= secret < PRIME and 0 < threshold <= len(points)):
        raise PeerError("share-threshold", f"cannot create {len(points)} shares with threshold {threshold}")
    # The share at 0 would be the secret. Two shares at one point are one equation, so `threshold` shares with
    # a repeated point would not determine the polynomial.
    if len(set(points)) != len(points) or any(not 0 < point < PRIME for point in points):
        raise PeerError("share-points-invalid", "the points of shares must be distinct and nonzero")
    coefficients = [secret, *(draw_number(draw) for _ in range(threshold - 1))]
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares.append(value)
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """Recover a secret from its shares. The secret is the value at 0 of the polynomial through the shares.
    Raises PeerError if a point or a share is outside the field. shares: point -> share."""
    secret = 0
    for point, share in shares.items():
        if not (0 < point < PRIME and 0 <= share < PRIME):
            raise PeerError("share-invalid", "a share is outside the field")
        # Lagrange at 0: the share at x_i has the factor prod x_j / (x_j - x_i) over all other points x_j.
        # Points are distinct and lie between 0 and the prime, so `below` is never 0 and has an inverse.
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret = (secret + share * above * pow(below, -1, PRIME)) % PRIME
    return secret


# ---- Which pairs of parties share masks -----------------------------------------------------------------
# In a small group, every pair shares masks. In a large group, only the edges of a graph do.
# The aggregator and the parties that collude can remove all masks that they know. What remains hides a party
# only through neighbours that do not collude: each connected component of the honest parties adds up to a
# bare sum. So the graph of the honest parties must be connected. It is a circulant graph. The parties stand
# on a ring, and each is a neighbour of the `degree / 2` before and after it. Separating the honest parties
# takes two runs of `degree / 2` colluding ones, so fewer than `degree` colluding parties never suffice.
# Positions on the ring follow from hashes of the session digest, which contains a fresh nonce of every party:
# more colluding parties, if chosen in advance, separate the others only by chance (`failure_bound`). The
# argument is in docs/decisions/0017-a-graph-of-pairs.md.
# Guarantees: the neighbours depend only on the digest, the names and the number that may collude. So every
# party computes the same graph, in which neighbourhood is mutual.


MAX_COMPLETE_PARTIES = 60
"""Maximum number of parties for which every pair shares masks. In such a group, any two parties that do not
collude hide each other's vectors, and each party computes at most 59 masks."""
MAX_GRAPH_PARTIES = 1_000
"""Maximum number of parties: the largest number tested. With this number, the greetings of one attempt take
about 1 GB in total; with twice as many parties, they would take 4 GB."""
MIN_SHARE = 3
"""In groups larger than MAX_COMPLETE_PARTIES, at least one in this many parties is assumed to collude,
regardless of the terms."""
MAX_FAILURE = 2.0**-100
"""Maximum probability that colluding parties separate the others into groups that share no masks. The last
party to send its greeting can try many nonces to obtain a favourable placement of the parties. With 2**40
nonces, the probability is 2**-60."""


def neighbours(me: str, members: tuple[str, ...], colluding: int, session: bytes) -> tuple[str, ...]:
    """Return the parties with which party `me` shares masks, sorted. members: all parties, sorted; colluding:
    number of parties that may collude; session: digest of the attempt."""
    count = degree(len(members), colluding)
    if count == len(members) - 1:
        return tuple(member for member in members if member != me)
    # With reach 2, d shares masks with b, c, e and f:
    #
    #     ring, closed to a circle    a  [b  c]  d  [e  f]  g  ...
    #
    # If w is s steps after u, u is s steps before w: both ends compute the same pair. The degree is below the
    # number of parties, so no party is reached from both sides and counted twice.
    places, ring = _ring(members, session)
    place, reach = places[me], count // 2
    steps = (step for step in range(-reach, reach + 1) if step)
    return tuple(sorted(ring[(place + step) % len(ring)] for step in steps))


@lru_cache(maxsize=64)
def degree(parties: int, colluding: int) -> int:
    """Return the number of parties with which each party shares masks.

    This is the smallest even number for which the probability that colluding parties separate the others is
    at most MAX_FAILURE. At least a third of all parties are assumed to collude. In groups of up to
    MAX_COMPLETE_PARTIES parties, or if more than half may collude, each party shares masks with all
    others."""
    bad = max(colluding, parties // MIN_SHARE)
    if parties <= MAX_COMPLETE_PARTIES or 2 * bad > parties:
        return parties - 1
    for reach in range(1, parties // 2):
        if failure_bound(parties, bad, reach) <= MAX_FAILURE:
            return 2 * reach
    return parties - 1


def failure_bound(parties: int, colluding: int, reach: int) -> float:
    """Return an upper bound on the probability that `colluding` parties separate the others into groups that
    share no masks. The parties are placed at random on a ring, where each shares masks with the `reach`
    parties before and after it.

    The colluding parties separate the others if and only if the ring has two runs of at least `reach`
    colluding parties. With two such runs, the others lie in two arcs, and no party of one arc is a neighbour
    of a party of the other. With at most one such run, each of the others is a neighbour of the next one, in
    ring order from the end of that run. At the start of each run is a window: an honest party followed by
    `reach` colluding parties. There are n (n - 2 reach - 1) / 2 pairs of disjoint windows. The ring has a
    given pair of windows with probability binomial(n - 2 reach - 2, colluding - 2 reach) / binomial(n,
    colluding). The bound is the sum over all pairs. The bound grows with `colluding` up to half of all
    parties, so it also holds for fewer colluding parties."""
    if colluding < 2 * reach:
        return 0.0
    ways = comb(parties - 2 * reach - 2, colluding - 2 * reach)
    return parties * (parties - 2 * reach - 1) * ways / (2 * comb(parties, colluding))


@lru_cache(maxsize=1)
def _ring(members: tuple[str, ...], session: bytes) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return each party's position on the ring, and the parties in ring order. The result is cached, because
    all parties of a simulation need it."""
    lots = {
        member: hashlib.sha256(packing.pack(b"fedboost/1/ring", session, member.encode())).digest()
        for member in members
    }
    ring = tuple(sorted(members, key=lots.__getitem__))
    return {member: place for place, member in enumerate(ring)}, ring


# ---- Check cells: each masked chunk ends with one more cell of 64 bits, which is 1 ----------------------
# Guarantees: in the opened sum, a check cell is the number of parties if their masks cancelled there. If they
# did not, it is another number, except with probability 2**-64. It proves nothing about the cells themselves.
# Raises: SessionFailed for a sum with other check cells. It is unknown who is at fault.


CHECK = 1
"""Value of every party's check cell."""


def zeros(tag: Tag) -> Words:
    """Create a running sum that is all zeros and includes check cells, uint64 [cells + chunks]."""
    return np.zeros(tag.cells + len(tag.checked), np.uint64)


def with_checks(values: Int64, tag: Tag) -> Words:
    """Copy a vector, int64 [cells], into words with check cells, uint64 [cells + chunks]."""
    # Two chunks, the first with cells a and b, the second with cell c:
    #
    #     whole    a  b  c
    #     words    a  b  1  c  1
    #
    # A negative integer is stored as its two's complement. Modulo the cell's 2**bits it is the same residue.
    words, whole = np.empty(tag.cells + len(tag.checked), np.uint64), values.view(np.uint64)
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        cells = checked.of(words)
        cells[:-1], cells[-1] = chunk.of(whole), CHECK
    return words


def add(total: Words, tag: Tag, number: int, packed: bytes) -> None:
    """Add a masked chunk to a running sum with check cells. Raises PeerError for a wrong number or length."""
    tag.chunk(number)
    checked = tag.checked[number]
    checked.add(checked.of(total), packed)


def checked_sum(words: Words, tag: Tag) -> Int64:
    """Verify the check cells of a finished sum and return the sum without them, int64 [cells]. Overwrites
    `words`. Raises SessionFailed if the masks did not cancel."""
    due = CHECK * len(tag.roster)
    if any(int(checked.of(words)[-1]) != due for checked in tag.checked):
        raise SessionFailed(
            "masks-not-cancelled",
            f"the masks of the {due} parties did not cancel in turn {tag.turn}: a party sent a wrong vector, "
            f"or a vector was changed in transit; train again, and if that fails too, check that all sites "
            f"and the aggregator run the same version of fedboost",
        )
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        # Chunk i moves i words to the left, starting with the first chunk. It ends at or before the start of
        # the next chunk, so no cell is overwritten before it has moved.
        chunk.of(words)[:] = checked.of(words)[:-1]
    return signed(words[: tag.cells], tag.segments)


# ---- Groups of parties that share masks, in `masked` and `paillier` -------------------------------------


KEY_BYTES = 32
ONE_LEG, TWO_LEGS, BENEATH = b"one leg", b"two legs", b"beneath encryption"
"""Labels of the three uses of masks. The label is part of the context, so each use has separate streams."""

MIN_GROUP_PARTIES = 3
"""Minimum number of parties. With two parties, each could subtract its own vector from the sum and obtain the
other party's vector."""

MAX_GROUP_PARTIES = 100
"""Maximum number of parties if every pair shares a key and a mask: the work grows with the pairs."""


@dataclass(frozen=True)
class Group:
    """The parties of a session, and how many of them may collude with the aggregator without learning
    anything.

    Recovering a lost party's self mask takes `threshold` shares. In each turn, an honest party discloses
    shares for only one roster, while a colluding party may disclose them for any roster. So opening the sums
    of two rosters takes shares from at least `2 * threshold - colluding` different parties. That is more than
    there are parties. At most one roster's sum can therefore be opened per turn, no matter what the
    aggregator and `colluding` parties do."""

    members: tuple[str, ...]
    colluding: int

    @classmethod
    def of(cls, parties: tuple[str, ...], colluding: int | None = None) -> "Group":
        """Create a group. colluding: default 1 if there are at least four parties, otherwise 0."""
        return cls(tuple(sorted(parties)), int(len(parties) >= 4) if colluding is None else colluding)

    @property
    def majority(self) -> int:
        """Minimum size of a set of parties for which any two such sets have an honest party in common, and
        each set contains at least two honest parties."""
        # With n members, c colluding and sets of m > (n + c) / 2, two sets have at least 2 m - n > c parties
        # in common, so one of these is honest. The second bound leaves two honest parties in each set: with
        # only one, the colluding parties could subtract their own vectors and obtain the honest party's.
        return max((len(self.members) + self.colluding) // 2 + 1, self.colluding + 2)

    @property
    def threshold(self) -> int:
        """Number of shares needed to recover a self mask."""
        return self.majority

    @property
    def min_roster(self) -> int:
        """Minimum number of parties in a sum: enough to open it, and at least MIN_GROUP_PARTIES if the group
        has that many."""
        return max(self.threshold, min(MIN_GROUP_PARTIES, len(self.members)))

    @property
    def min_signers(self) -> int:
        """Minimum number of parties that sign a model. Two different models cannot both have that many."""
        return max(self.majority, min(MIN_GROUP_PARTIES, len(self.members)))

    def peers(self, me: str, session: bytes, every_pair: bool) -> tuple[str, ...]:
        """Return the parties with which `me` shares masks: its neighbours in the graph of pairs or, if
        every_pair is True, all others. session: digest of the attempt."""
        if every_pair:
            return tuple(member for member in self.members if member != me)
        return neighbours(me, self.members, self.colluding, session)

    def point(self, party: str) -> int:
        """Return the nonzero point at which a party's share is evaluated."""
        return self.members.index(party) + 1

    def digest(self) -> bytes:
        """Encode the group as bytes that are hashed into session digests and contexts."""
        names = (member.encode() for member in self.members)
        return packing.pack(packing.number(self.majority), packing.number(self.colluding), *names)


# ---- The facts from which a protection's ends are made ---------------------------------------------------


@dataclass(frozen=True)
class PartySetup:
    """The facts about an attempt that a sealer needs. They are known once the parties have exchanged
    greetings.

    Args:
        me: name of this party.
        group: all parties of the session.
        session: digest of the attempt.
        pair_keys: function that returns the key shared with each of the given parties. It can be called only
            once.
        draw: source of cryptographic randomness.
        public: public key that encrypts sums.
        secret: key pair that decrypts sums; None unless this party is the key holder.
        max_openings: maximum number of sums that the key holder decrypts.
        sparse: True if zeros may be omitted, which makes message lengths depend on the rows.
        shrinks: True if the session may continue without lost parties.
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
    """The facts about an attempt that an opener needs, in addition to the turn's tag. Fields not listed are
    as in `PartySetup`. keyholder: name of the party that has the secret key."""

    group: Group
    session: bytes
    draw: RandomBytes | None = None
    public: "Public | None" = None
    keyholder: str | None = None
    shrinks: bool = False
    hidden: HiddenSums | None = None
    """The sums that parties report in encrypted form in this turn, or None."""


# ---- The keys of an attempt, and the streams that they make ---------------------------------------------
# Why a pair's mask cancels. The two parties u < v expand the same stream from the same key and ctx. u adds
# it, v subtracts it, and both reduce modulo the cell's own 2**bits, so in a sum that contains both vectors
# the stream is 0 modulo 2**bits, in every cell. In a sum that lacks one of the two it remains, and is uniform
# to anyone without k_uv.
# Why ctx is in the stream's key. A party that was given another roster, query, attempt or shape has another
# ctx, hence an independent stream. Nothing cancels then, and the sum is noise instead of a sum of fewer rows.
# What the loss of a party reveals. Before its upload: the others' vectors still carry their masks with it, so
# their sum is noise. The attempt starts over with fresh keys. If the lost vector still arrives, in one leg
# the abandoned sum opens after all. It is the sum that the next attempt asks for, since a vector is a
# function of only rows, terms, state and query, so it reveals nothing new. After its upload: nothing, its
# vector is in the sum. In no case does it reveal a pair's key. But masks do not protect the sums themselves:
# those over a roster with and without a party reveal its vector. So where the roster may shrink, there are
# two legs.


class Handshake:
    """A party's key pair for one attempt. The private key is kept until the pair keys are derived."""

    def __init__(self, draw: RandomBytes) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(draw(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def pair_keys(
        self, me: str, publics: Mapping[str, bytes], session: bytes, peers: Collection[str]
    ) -> dict[str, bytes]:
        """Derive the key shared with each of `peers` that has sent a greeting.

        The keys are bound to the attempt's digest and to the names of both parties. The private key is
        deleted, because the keys could be derived from it again.

        Args:
            me: name of this party.
            publics: party -> its X25519 public key.
            session: digest of the attempt.
            peers: names of the parties to share keys with.

        Raises:
            PeerError: The keys were derived before, or a public key is not a valid X25519 key.
        """
        # A second derivation would return keys that `PairMasks.masked` has erased since, and with them
        # the streams of vectors that were sealed already.
        private, self._private = self._private, None
        if private is None:
            raise PeerError("keys-derived-twice", "the keys of this attempt were already derived")
        keys = {}
        for peer in (publics.keys() & peers) - {me}:
            try:
                # Raises ValueError for keys of small order, too: the secret would be all zeros, and everyone
                # could compute the masks of this pair.
                secret = private.exchange(X25519PublicKey.from_public_bytes(publics[peer]))
            except ValueError:
                raise PeerError(
                    "key-not-x25519", f"the key of party {peer} is not a valid X25519 key"
                ) from None
            names = (name.encode() for name in sorted((me, peer)))
            info = packing.pack(b"fedboost/2/pair", *names)
            keys[peer] = HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(secret)
        return keys


@lru_cache(maxsize=1)  # all parties of a simulation need the same one
def context(way: bytes, session: bytes, group: Group, tag: Tag) -> bytes:
    """Return a public 32-byte hash of everything that both ends must agree on, so that masks cancel and
    shares can be decrypted.

    way: ONE_LEG, TWO_LEGS or BENEATH; session: digest of the attempt, which covers session, attempt, terms
    and greetings. Check cells are not hashed, since they follow from the shape."""
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
    """Derive a 32-byte key for one use of `key`, using one block of HKDF-Expand with SHA-256 (RFC 5869).
    what, about: identify the use."""
    return hmac.digest(key, packing.pack(what, *about) + b"\x01", "sha256")


def mask_keys(key: bytes, ctx: bytes) -> tuple[bytes, bytes]:
    """Derive the key of a pair's mask in a context, and the pair's next key, in the one step of NIST SP
    800-56C. All fields have fixed lengths and fill less than one block of SHA-512."""
    both = hashlib.sha512(b"\0\0\0\1" + key + b"fedboost/5/mask" + ctx).digest()
    return both[:KEY_BYTES], both[KEY_BYTES:]


def mask(whole: Words, tag: Tag, streams: Sequence[tuple[bytes, bool]]) -> Iterator[tuple[Chunk, Words]]:
    """Mask a vector with check cells in place, chunk by chunk. Yields each chunk with its cells, uint64
    [cells], of which only the lowest `bits` bits are valid. streams: key of each stream of AES-256 in counter
    mode, used only for this vector, and True to add the stream or False to subtract it."""
    # A vector has at most MAX_CELLS cells (protocol/contracts.py) of 8 bytes and one check cell per chunk:
    # about 2**30 bytes, far below the 2**36 after which GCM's counter of 32 bits would wrap.
    word = 0
    for chunk in tag.checked:
        words = chunk.of(whole)
        if kernels.LANES:
            keys = np.frombuffer(b"".join([key for key, _ in streams]), np.uint32).reshape(-1, KEY_BYTES // 4)
            kernels.mask(words, keys, np.array([added for _, added in streams], bool), chunk.pieces, word)
        else:
            before, first = word % 2 * 8, (word // 2 + 2).to_bytes(16)
            for key, added in streams:
                cipher = Cipher(algorithms.AES(key), modes.CTR(first)).encryptor()
                stream = memoryview(cipher.update(bytes(before + chunk.size)))[before:]
                chunk.add(words, stream, kernels.ADDED if added else kernels.SUBTRACTED)
        word += chunk.size // packing.WORD_BYTES
        yield chunk, words


class PairMasks:
    """Keeps the keys that a party shares with its peers, and creates the masks for one tag after another.
    way: ONE_LEG, TWO_LEGS or BENEATH."""

    def __init__(self, setup: PartySetup, way: bytes) -> None:
        self._me, self._group, self._session = setup.me, setup.group, setup.session
        # Only one leg uses the sparse graph. In two legs every party seals a share for every other, so it
        # needs all keys. Encrypted groups have at most MAX_GROUP_PARTIES, few enough for a key of every pair.
        self._keys = setup.pair_keys(setup.group.peers(setup.me, setup.session, way != ONE_LEG))
        self._way = way
        self.tag: Tag | None = None
        """Tag of the last masked vector."""
        self.ctx = b""
        """Context of the last masked vector."""

    def __repr__(self) -> str:
        return f"PairMasks({self._me!r})"

    def check(self, tag: Tag) -> None:
        """Raise PeerError if the roster contains unknown or repeated parties, if this party is missing from
        it, or if the tag is not newer than the last one."""
        if self.tag is None or tag.roster != self.tag.roster:
            roster = set(tag.roster)
            if self._me not in roster or not roster <= set(self._group.members):
                raise PeerError("roster-invalid", "the roster has unknown parties, or lacks this party")
            if len(roster) != len(tag.roster):
                raise PeerError("roster-repeats-party", "the roster contains a party twice")
        check_newer(tag, self.tag)

    def begin(self, tag: Tag) -> None:
        """Set the current tag, which `check` must have accepted."""
        self.tag, self.ctx = tag, context(self._way, self._session, self._group, tag)

    def masked(self, values: Int64, tag: Tag, *more: tuple[bytes, bool]) -> Iterator[tuple[Chunk, Words]]:
        """Return the chunks of the current tag's vector, as `mask` does, and replace the keys that are shared
        with peers. Chunks are masked later, when they are taken. more: streams besides those of pairs."""
        # The keys of a pair. Each arrow is one way, so an intruder with k_2 has neither k_1 nor mask 1:
        #
        #     k_1 --- ctx 1 ---> k_2 --- ctx 2 ---> k_3
        #      |                  |
        #     mask 1             mask 2
        #
        # If two parties once sealed under different contexts, their keys differ from then on. No later mask
        # of theirs cancels until a new attempt exchanges keys.
        keys, self._keys, roster, streams = self._keys, {}, set(tag.roster), [*more]
        for peer, key in keys.items():
            stream, self._keys[peer] = mask_keys(key, self.ctx)
            if peer in roster:
                streams.append((stream, peer > self._me))  # both ends have one key; the sign depends on names
        return mask(with_checks(values, tag), tag, streams)

    def derived(self, peer: str, what: bytes, *names: str) -> bytes:
        """Derive a key for one use within the current tag from a peer's shared key. what, names: the use."""
        return derive(self._keys[peer], what, self.ctx, *(name.encode() for name in names))


def check_whole(tag: Tag, group: Group) -> None:
    """Raise PeerError unless the roster consists of all parties of the group, each once."""
    if len(tag.roster) != len(group.members) or set(tag.roster) != set(group.members):
        raise PeerError(
            "roster-partial",
            f"the roster has {len(tag.roster)} parties, but must have all {len(group.members)} parties of "
            "the session",
        )


# ---- Relays: bytes from one party to some others, which the aggregator passes on and cannot read --------
# The bytes are encrypted once, under a fresh key. That key is encrypted for each receiver, under a key
# derived from the secret of sender and receiver, with the ciphertext as associated data. So only the
# receivers can read the bytes, and no receiver can replace them with others.
#
# A key is used for one encryption. Bytes can be decrypted only by the receiver, and with the sender and
# context, for which they were sealed. Otherwise PeerError is raised.


_TAG_BYTES = 16
_NONCE = bytes(12)
"""The AES-GCM nonce. It can be constant, because each key is used for only one encryption."""


def sealed_size(content: int, receivers: Iterable[str]) -> int:
    """Return the size in bytes of the output of `seal` for `content` bytes and these receivers."""
    names = [*map(str.encode, receivers)]
    wrapped = len(names) * (2 * packing.LENGTH_BYTES + KEY_BYTES + _TAG_BYTES) + sum(map(len, names))
    return packing.LENGTH_BYTES + content + _TAG_BYTES + wrapped


MIN_SEALED_BYTES = sealed_size(0, ["a"])
"""Minimum size in bytes of the output of `seal`."""


def seal(content: bytes, sender: str, keys: Mapping[str, bytes], context: bytes, draw: RandomBytes) -> bytes:
    """Encrypt bytes for the parties in `keys`, so that the aggregator can forward but not read them.

    Args:
        content: bytes to encrypt.
        sender: name of this party.
        keys: receiver -> key that it shares with the sender.
        context: everything that sender and receivers must agree on; must not be used twice.
        draw: source of cryptographic randomness.
    """
    # Packed, each field after its length:
    #
    #     ciphertext | receiver a | key wrapped for a | receiver b | key wrapped for b | ...
    #
    # A receiver knows `key`, and could encrypt other content under it. But the wrapped keys of the others
    # authenticate the ciphertext, and it cannot wrap under a secret that it does not share.
    key = draw(KEY_BYTES)
    ciphertext = AESGCM(key).encrypt(_NONCE, content, context)
    wrapped = []
    for party, secret in keys.items():
        wrapper = _wrapper(secret, sender, party, context)
        wrapped += [party.encode(), wrapper.encrypt(_NONCE, key, ciphertext)]
    return packing.pack(ciphertext, *wrapped)


def open_sealed(sealed: bytes, sender: str, receiver: str, secret: bytes, context: bytes) -> bytes:
    """Decrypt bytes that `seal` encrypted. secret: key that sender and receiver share. Raises PeerError if
    the bytes were changed, or sealed by another sender, for another receiver or in another context."""
    try:
        ciphertext, *wrapped = packing.unpack(memoryview(sealed))
        keys = dict(zip(wrapped[::2], wrapped[1::2], strict=True))
        wrapper = _wrapper(secret, sender, receiver, context)
        key = wrapper.decrypt(_NONCE, keys[memoryview(receiver.encode())], ciphertext)
        return AESGCM(key).decrypt(_NONCE, ciphertext, context)
    except (PeerError, ValueError, KeyError, InvalidTag):
        raise PeerError(
            "relay-not-authentic",
            f"the bytes relayed by party {sender} cannot be decrypted: they were changed in transit, or are "
            f"for a different turn or tree",
        ) from None


def _wrapper(secret: bytes, sender: str, receiver: str, context: bytes) -> AESGCM:
    return AESGCM(derive(secret, b"fedboost/4/relay", sender.encode(), receiver.encode(), context))
