"""Masks that every two parties share: they hide a party's vector in `masked`, `paillier` and `bfv`.

The masked vector of party u, cell by cell modulo the cell's 2**bits, with ctx = everything that both ends
must agree on:

    y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)

Promises: the masks cancel in the sum of all parties of a tag, and in no smaller one; a stream is used once;
keys never leave the party, and are replaced after each vector.
Refuses: invalid public keys, and the tags that `PairMasks.check` names (PeerError).
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import CHUNK_CELLS, Chunk, Words
from fedboost.privacy.masked.check_cells import with_checks
from fedboost.privacy.masked.pairs_graph import neighbours
from fedboost.privacy.protection import Tag, check_newer
from fedboost.privacy.shamir import RandomBytes

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
        return fields.pack(fields.number(self.majority), fields.number(self.colluding), *names)


# ---- keys of a session ------------------------------------------------------------------------------


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
            info = fields.pack(b"fedboost/2/pair", *names)
            keys[peer] = HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(secret)
        return keys


@lru_cache(maxsize=1)  # the parties of a simulation have the same
def context(way: bytes, session: bytes, group: Group, tag: Tag) -> bytes:
    """Everything both ends must agree on for masks to cancel and shares to open: 32 bytes, which are public.

    session: the digest of the attempt, in which session, attempt, terms and greetings are; the check cells
    follow from the shape.
    """
    roster = fields.pack(*(party.encode() for party in sorted(tag.roster)))
    shape = (number for segment in tag.segments for number in (segment.cells, segment.bits))
    numbers = (tag.turn, tag.attempt, *shape)
    return hashlib.sha256(
        fields.pack(
            b"fedboost/3/context",
            way,
            session,
            group.digest(),
            roster,
            tag.transcript,
            *map(fields.number, numbers),
        )
    ).digest()


def derive(key: bytes, what: bytes, *about: bytes) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869) to 32 bytes, which is one block of it."""
    return _expand(key, fields.pack(what, *about))


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

    def __init__(self, me: str, group: Group, session: bytes, keys: dict[str, bytes], way: bytes) -> None:
        self._me = me
        self._group = group
        self._session = session
        self._keys = keys
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
        info = fields.pack(b"next", self.ctx)
        self._keys = {peer: _expand(key, info) for peer, key in self._keys.items()}


def check_whole(tag: Tag, group: Group) -> None:
    """Raise PeerError unless the roster is all parties, each once."""
    if len(tag.roster) != len(group.members) or set(tag.roster) != set(group.members):
        raise PeerError(f"a roster of {len(tag.roster)} parties that is not all {len(group.members)}")
