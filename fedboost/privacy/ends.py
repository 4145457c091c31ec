"""The two ends of each protection: `plain`, `masked` in one leg and in two, `paillier` over whole rows.

`plain` hides nothing: the aggregator sees every party's vector before it adds it. It is for benchmarks, tests
and parties that trust the aggregator; an ordinary data-parallel allreduce. Where few bins of a node have
rows, only their cells travel; then lengths, which others see, depend on rows.
"""

import contextlib
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import LocalProtocolError, PeerError, RosterTooSmall, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing, pairwise
from fedboost.privacy.packing import Chunk, Words, signed
from fedboost.privacy.pairwise import (
    BENEATH,
    KEY_BYTES,
    ONE_LEG,
    TWO_LEGS,
    AggregatorSetup,
    Group,
    PairMasks,
    PartySetup,
    Stream,
    check_whole,
    context,
    derive,
    masked_chunks,
    scratch_of,
)
from fedboost.privacy.protection import Opener, Sealer, Tag, check_newer

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

NAME_BYTES = 16
"""Bytes of a public key's digest, before every sealed chunk."""


class PlainSealer(Sealer):
    """Packs the integers into cells. sparsely: zeros may be left out."""

    unexpected_help = "protection plain needs no help"

    def __init__(self, sparsely: bool = True) -> None:
        self._sparsely = sparsely
        self._last: Tag | None = None

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The chunks of the vector as packed cells."""
        check_newer(tag, self._last)
        self._last = tag
        words = np.ascontiguousarray(values).view(np.uint64)
        packed = Chunk.packed_sparsely if self._sparsely else Chunk.packed
        return (packed(chunk, chunk.of(words)) for chunk in tag.chunks)


class PlainOpener(Opener):
    """Adds packed cells into one running sum."""

    unexpected_note = "a note where protection plain has none"
    unexpected_help = "help that protection plain did not ask for"

    def __init__(self, tag: Tag) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._sum = np.zeros(tag.cells, np.uint64)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one chunk."""
        chunk = self._tag.chunk(number)
        chunk.add_sparsely(chunk.of(self._sum), cells)

    def open(self) -> Int64:
        """The sum."""
        return signed(self._sum, self._tag.segments)


# ---- Protection `masked`: pairwise masks in one leg, and in two legs where the roster may change --------
# Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
# `colluding` parties. In one leg a party answers for all parties of the session or not at all, so no vector
# is ever one of a smaller roster, and nothing is given away for the sum to open
# (docs/decisions/0016-masks-in-one-leg.md).
#
# A turn in one leg, with ctx = everything both ends must agree on:
#
#     upload   each u: y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)
#     open     the sum of y
#
# Promises: the sum of all parties opens, and no smaller one; what was sealed counts as opened, since it is
# once all others sealed, however late their vectors come; nobody is asked for help.
# Refuses (PeerError): every roster but all parties of the session, and the tags that `PairMasks.check` names;
# notes and help, which one leg does not use.


class _MaskingSealer(Sealer):
    """Base of a party's end whose vectors are masked with the streams of its pairs."""

    way = ONE_LEG

    def __init__(self, setup: PartySetup) -> None:
        self._me = setup.me
        self._group = setup.group
        self._pairs = PairMasks(setup, self.way)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._me!r})"

    @property
    def ctx(self) -> bytes:
        """The context of the last vector."""
        return self._pairs.ctx


class OneLegSealer(_MaskingSealer):
    """Masks one party's vectors with the streams of its pairs."""

    unexpected_help = "asked to help with masks that cancel without help"

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked chunks of a vector."""
        self._pairs.check(tag)
        check_whole(tag, self._group)
        streams = self._pairs.streams(tag)
        return (chunk.packed(words) for chunk, words in masked_chunks(values, tag, streams))


class OneLegOpener(Opener):
    """Adds masked chunks into one running sum, in which the masks cancel."""

    unexpected_note = "a note where masks in one leg have none"
    unexpected_help = "help that masks in one leg did not ask for"

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        self.chunks = len(tag.chunks)
        self.ctx = context(ONE_LEG, setup.session, setup.group, tag)
        self._tag = tag
        self._sum = pairwise.zeros(tag)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one masked chunk."""
        pairwise.add(self._sum, self._tag, number, cells)

    def open(self) -> Int64:
        """The sum, once every party's chunks are added. SessionFailed if the masks did not cancel."""
        return pairwise.checked_sum(self._sum, self._tag)


# ---- Shared by both ends of masked sums: commitments, sealed shares, self masks -------------------------


COMMIT, RECOVER = b"commit", b"recover"
"""Kinds of requests for help."""
NONCE = bytes(12)
"""Always the same: a key is used for one share."""
SEALED_SHARE = pairwise.SHARE_BYTES + 16
"""Bytes of a share with GCM's tag."""


def commitment(mask: bytes, ctx: bytes, party: str) -> bytes:
    """A hash that commits a party to its self mask of a context: 32 bytes."""
    return hashlib.sha256(packing.pack(b"fedboost/1/commitment", mask, ctx, party.encode())).digest()


def name_of(field: bytes) -> str:
    """The party's name in a field. PeerError if it is not text."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise PeerError("a party's name that is not text") from None


def by_name(entries: list[bytes]) -> dict[str, bytes]:
    """Party to bytes, from fields that alternate between the two."""
    if len(entries) % 2 or len(set(entries[::2])) != len(entries) // 2:
        raise PeerError("fields that are not one for each party")
    return {name_of(name): value for name, value in zip(entries[::2], entries[1::2], strict=True)}


def self_stream(mask: bytes, ctx: bytes, party: str) -> Stream:
    """The stream of a party's self mask under a context."""
    return Stream(derive(mask, b"self", ctx, party.encode()))


# ---- The party's end of masked sums in two legs: where the roster may shrink ----------------------------


class TwoLegSealer(_MaskingSealer):
    """Seals one party's vectors, and helps to open the sums they went into.

    Refuses, and says so (PeerError): a roster with strangers, without this party, smaller than the threshold,
    or another one than before; a turn or attempt that is not greater than the last; an upload after this
    turn's commit; a commit of an old attempt, with a share missing or not authentic, or of a turn that
    committed another attempt; a recovery before this party's own commit, or of too many.
    """

    way = TWO_LEGS

    def __init__(self, setup: PartySetup) -> None:
        super().__init__(setup)
        self._draw = setup.draw
        self._mask: bytes | None = None
        self._note = b""
        self._shares: dict[str, bytes] | None = None
        """Other parties' shares of this turn, once this party committed to them."""
        self._share_keys: dict[tuple[str, str], bytes] = {}
        """Sender and receiver to the key of a share of this turn."""

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked chunks of a vector."""
        self._check(tag)
        self._pairs.begin(tag)
        peers = set(tag.roster) - {self._me}
        ways = [(peer, way) for peer in peers for way in ((self._me, peer), (peer, self._me))]
        self._share_keys = {way: self._pairs.derived(peer, b"share", *way) for peer, way in ways}
        streams = self._pairs.masks(tag)
        self._pairs.replace_keys()
        mask = self._mask = self._draw(KEY_BYTES)
        self._note, self._shares = b"", None
        streams.append((self_stream(mask, self._pairs.ctx, self._me), True))
        return (chunk.packed(words) for chunk, words in masked_chunks(values, tag, streams))

    def note(self) -> bytes:
        """The note of the last chunk: a commitment to the self mask, and its sealed share for each peer.

        Made once: other shares under the same key would give both away.
        """
        tag = self._pairs.tag
        assert tag is not None
        if self._note:
            return self._note
        assert self._mask is not None
        peers = [peer for peer in sorted(tag.roster) if peer != self._me]
        points = [self._group.point(party) for party in (*peers, self._me)]  # its own share is thrown away
        shares = pairwise.split(int.from_bytes(self._mask), self._group.threshold, points, self._draw)
        sealed = []
        for peer, share in zip(peers, shares, strict=False):
            cipher = AESGCM(self._share_keys[self._me, peer])
            sealed += [peer.encode(), cipher.encrypt(NONCE, share.to_bytes(pairwise.SHARE_BYTES), None)]
        self._note = packing.pack(commitment(self._mask, self._pairs.ctx, self._me), *sealed)
        return self._note

    def assist(self, request: bytes) -> bytes:
        """This party's self mask, or its shares of lost parties' masks."""
        try:
            kind, ctx, *rest = packing.unpack(request)
        except ValueError:
            raise PeerError("a request for help that asks nothing") from None
        if self._pairs.tag is None or not hmac.compare_digest(ctx, self._pairs.ctx):
            raise PeerError("asked to help with a turn or attempt that is not the last")
        if kind == COMMIT:
            return self._commit(by_name(rest))
        if kind == RECOVER:
            return self._recover([name_of(party) for party in rest])
        raise PeerError("asked for help of an unknown kind")

    def _check(self, tag: Tag) -> None:
        self._pairs.check(tag)
        last = self._pairs.tag
        if len(tag.roster) < self._group.min_roster:
            raise PeerError(f"a roster of {len(tag.roster)} parties, fewer than {self._group.min_roster}")
        if last is not None and tag.turn == last.turn and self._shares is not None:
            raise PeerError(f"turn {tag.turn} was committed: no other attempt of it is sealed")
        if last is not None and set(tag.roster) != set(last.roster):
            raise PeerError("the roster changed under the same keys")

    def _commit(self, sealed: dict[str, bytes]) -> bytes:
        assert self._pairs.tag is not None
        assert self._mask is not None
        peers = set(self._pairs.tag.roster) - {self._me}
        if set(sealed) != peers:
            raise PeerError("asked to commit without the share of every party of the roster")
        shares = {}
        for peer in sorted(peers):
            try:
                shares[peer] = AESGCM(self._share_keys[peer, self._me]).decrypt(NONCE, sealed[peer], None)
            except InvalidTag:
                raise PeerError(
                    f"the share of party {peer} is not authentic: it sealed under another session, turn, "
                    f"or roster, or its share was changed on the way"
                ) from None
        if self._shares is not None and shares != self._shares:
            raise PeerError("asked to commit twice with different shares")
        self._shares = shares
        return self._mask

    def _recover(self, lost: list[str]) -> bytes:
        assert self._pairs.tag is not None
        roster = self._pairs.tag.roster
        if self._shares is None:
            raise PeerError("asked to recover before this party committed")
        left = len(roster) - len(lost)
        twice = len(set(lost)) != len(lost)
        if twice or not set(lost) <= set(self._shares) or left < self._group.threshold:
            raise PeerError(f"asked to recover {len(lost)} of {len(roster)} parties")
        answer = []
        for party in lost:
            answer += [party.encode(), self._shares[party]]
        return packing.pack(*answer)


# ---- Protection `masked` where the roster may shrink, in two legs ---------------------------------------
# The aggregator learns the sum of a turn and nothing else of it.
# Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
# `colluding` parties; a party lost after its upload does not cost the turn. The design is Bonawitz and
# others' secure aggregation (CCS 2017) with pairwise keys that are never shared and one short-lived self
# mask a turn; it has not been reviewed by others yet.
#
# A turn in two legs:
#
#     upload   each u: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx), and for
#              every other v a share of b_u, sealed under k_uv
#     commit   the aggregator relays the shares; each u holds them all to ctx and then gives b_u away
#     recover  for a party that was lost after its upload: the others give their shares of its b
#     open     the sum of y minus the self masks
#
# Promises: a tag is sealed once; a vector that was uploaded for an attempt that did not commit can never be
# opened; pairwise keys are replaced after each vector and never leave the party.
# Refuses: see `TwoLegSealer`; each rule has a test of its name in tests/privacy/masked.


class TwoLegOpener(Opener):
    """Adds masked chunks into one running sum, collects the help, and opens the sum.

    It can never open the sum of less than the whole roster: pairwise masks cancel in the whole only.
    Raises RosterTooSmall when too few parties are left to recover a self mask.
    """

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._group = setup.group
        self.ctx = context(TWO_LEGS, setup.session, setup.group, tag)
        self._sum = pairwise.zeros(tag)
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._masks: dict[str, bytes] = {}
        self._shares: dict[str, dict[int, int]] = {}
        self._lost: set[str] = set()
        self._missing: set[str] = set()
        """The parties whose masks the others were asked to recover."""

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one masked chunk."""
        pairwise.add(self._sum, self._tag, number, cells)

    def note(self, party: str, note: bytes) -> None:
        """Take in a party's commitment to its self mask, and its shares of that."""
        try:
            commitment, *sealed = packing.unpack(note)
        except ValueError:
            raise PeerError("its report came without a commitment") from None
        shares = by_name(sealed)
        if set(shares) != set(self._tag.roster) - {party}:
            raise PeerError("its shares are not one for every other party of the roster")
        if len(commitment) != KEY_BYTES or any(len(share) != SEALED_SHARE for share in shares.values()):
            raise PeerError("its commitment or its shares are of another length than those can be")
        self._commitments[party], self._sealed[party] = commitment, shares

    def requests(self) -> dict[str, bytes]:
        """Party to its request for help; empty when the sum can be opened."""
        present = [party for party in sorted(self._tag.roster) if party not in self._lost]
        missing = sorted(party for party in self._lost if party not in self._masks)
        if missing and len(present) < self._group.threshold:
            raise RosterTooSmall(
                f"{len(present)} of {len(self._tag.roster)} parties are left, {self._group.threshold} are "
                f"needed to open the sum without {', '.join(missing)}"
            )
        uncommitted = [party for party in present if party not in self._masks]
        if uncommitted:
            sealed = sorted(self._sealed.items())
            relayed = {
                to: [part for sender, own in sealed if sender != to for part in (sender.encode(), own[to])]
                for to in uncommitted
            }
            return {to: packing.pack(COMMIT, self.ctx, *parts) for to, parts in relayed.items()}
        if not missing:
            return {}
        self._missing = set(missing)
        request = packing.pack(RECOVER, self.ctx, *(party.encode() for party in missing))
        return dict.fromkeys(present, request)

    def lose(self, party: str) -> None:
        """Note that a party whose upload is in is disconnected: its mask is recovered from the others."""
        self._lost.add(party)

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help; PeerError if it does not answer the request, SessionFailed if the shares do
        not recover a lost party's mask."""
        if party not in self._commitments:
            raise PeerError("its help came without its report")
        if party not in self._masks:
            if not self._is_of(party, answer):
                raise PeerError(f"the self mask of party {party} is not the one it committed to")
            self._masks[party] = answer
            return
        answered = by_name(packing.unpack(answer))
        if not answered or set(answered) != self._missing:
            raise PeerError("its help is not what was asked for")
        for lost, share in answered.items():
            if len(share) != pairwise.SHARE_BYTES:
                raise PeerError("its help is not what was asked for")
            shares = self._shares.setdefault(lost, {})
            shares[self._group.point(party)] = int.from_bytes(share)
            if len(shares) == self._group.threshold and lost not in self._masks:
                self._masks[lost] = self._recovered(lost, shares)

    def _recovered(self, lost: str, shares: Mapping[int, int]) -> bytes:
        """A lost party's mask. Who spoilt it is unknown, so the party that helped last is not to blame."""
        with contextlib.suppress(PeerError, OverflowError):
            mask = pairwise.combine(shares).to_bytes(KEY_BYTES)
            if self._is_of(lost, mask):
                return mask
        raise SessionFailed(
            f"the self mask of party {lost}, which was lost, cannot be recovered: the shares of it do not "
            f"fit its commitment, so party {lost} dealt wrong ones, or a party that helped changed its own"
        )

    def _is_of(self, party: str, mask: bytes) -> bool:
        """True if this party committed to the mask."""
        return hmac.compare_digest(commitment(mask, self.ctx, party), self._commitments[party])

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self.requests():
            raise PeerError("the sum cannot be opened yet")
        scratch = scratch_of(self._tag)
        for party in self._tag.roster:
            stream = self_stream(self._masks[party], self.ctx, party)
            for chunk in self._tag.checked:
                chunk.subtract(chunk.of(self._sum), stream.next(chunk.size, scratch))
        return pairwise.checked_sum(self._sum, self._tag)


# ---- Protection `paillier`: the aggregator adds masked ciphertexts, and a key holder opens the sum ------
# Designed for: consortia whose rules ask for encryption. The aggregator never has the secret key, unless it
# lies: what it has opened may be something else than a sum, which the key holder cannot tell. So the masks of
# `pairwise` lie beneath the encryption: even with the secret key a party's vector is uniformly random, and
# only the sum of all parties is not.
#
# A turn, with ctx = everything that both ends must agree on:
#
#     upload   each party: its cells and its masks modulo the cell's 2**bits, encrypted under the key of the
#              session
#     blind    the aggregator adds the ciphertexts up, adds a number drawn from all plaintexts to each, which
#              randomises it again, and sends them with ctx to the key holder
#     assist   the key holder decrypts the blinded sum, which is uniform noise to it, once a turn, and counts
#     open     the aggregator subtracts its numbers, and cuts off what the masks carried above a cell's bits
#
# Promises: the key holder learns nothing of a sum but how many cells it has; an aggregator that lies, or has
# the key, learns no more than the sum over all parties, as long as two of them with rows do not collude with
# it; a tag is sealed once; the same request gets the same answer, another one of the same turn gets none.
# Refuses: rosters other than all parties; ciphertexts of another key, out of range or of another number than
# the cells have; keys that are too short or cannot be keys; more openings than the terms have sums
# (PeerError).


class KeyHolder:
    """Opens blinded sums: of the tag that was announced last, and of each turn only one.

    Two sums of one turn could differ in a single party alone. So once a sum of a turn was opened, no other
    attempt of that turn is opened.
    """

    def __init__(self, secret: "Secret", group: Group, session: bytes, max_openings: int) -> None:
        self._secret = secret
        self._group = group
        self._session = session
        self._most = max_openings
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Sums opened so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """Allow a request for this sum from now on. PeerError if it is not newer than the last."""
        check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError(f"turn {tag.turn} was opened: no other attempt of it is")
        check_whole(tag, self._group)
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the tag announced last."""
        if not request:
            raise PeerError("a request for help that asks nothing")
        ctx, *sealed = packing.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError("asked to open a turn or attempt that is not the last, or another session's sum")
        request_digest = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(request_digest, self._request):
                raise PeerError(f"asked to open turn {tag.turn} a second time, and with another request")
            return self._answer
        if self.openings >= self._most:
            raise PeerError(f"asked to open more than the {self._most} sums that the terms have")
        if len(sealed) != len(tag.chunks):
            raise PeerError(f"asked to open {len(sealed)} parts of a vector of {len(tag.chunks)} parts")
        parties = len(self._group.members)
        ciphers = [self._secret.public.cipher(chunk, parties) for chunk in tag.checked]
        read = [cipher.read(chunk) for cipher, chunk in zip(ciphers, sealed, strict=True)]
        self._opened_turn = tag.turn
        self._request = request_digest  # no other request is answered from here on
        self.openings += 1
        self._answer = packing.pack(*map(self._secret.decrypt, read))
        return self._answer


def name_of_key(public: "Public") -> bytes:
    """The beginning of a digest of a public key."""
    return hashlib.sha256(packing.pack(b"fedboost/1/public", public.to_bytes())).digest()[:NAME_BYTES]


class EncryptedSealer(_MaskingSealer):
    """Masks one party's vectors and encrypts them under the session's key; with the secret key it also helps
    to open the sums.

    Refuses (PeerError): the tags that `PairMasks.check` refuses; a roster other than all parties; help
    without the secret key, and the requests that `KeyHolder` refuses.
    """

    way = BENEATH

    def __init__(self, setup: PartySetup) -> None:
        super().__init__(setup)
        assert setup.public is not None
        self._public = setup.public
        self._name = name_of_key(setup.public)
        ends = setup.group, setup.session, setup.max_openings
        self._holder = None if setup.secret is None else KeyHolder(setup.secret, *ends)
        setup.public.prepare()

    @property
    def openings(self) -> int:
        """Sums that this party helped to open."""
        return self._holder.openings if self._holder else 0

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked and encrypted chunks of a vector."""
        self._pairs.check(tag)
        check_whole(tag, self._group)
        if self._holder is not None:
            self._holder.announce(tag)
        streams = self._pairs.streams(tag)
        return (self._encrypted(chunk, words) for chunk, words in masked_chunks(values, tag, streams))

    def _encrypted(self, chunk: Chunk, masked: Words) -> bytes:
        cipher = self._public.cipher(chunk, len(self._group.members))
        return self._name + cipher.encrypt(chunk.residues(masked))

    def assist(self, request: bytes) -> bytes:
        """The plaintexts of the blinded sum of the last sealed vectors."""
        if self._holder is None:
            raise PeerError("asked to open a sum without the secret key")
        return self._holder.assist(request)


class EncryptedOpener(Opener):
    """Adds encrypted chunks into one running sum, has it opened by the key holder, and takes the blind away.

    Raises RosterTooSmall when the key holder is lost: nobody else can open the sum.
    """

    unexpected_note = "a note where encrypted cells have none"

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        public, group = setup.public, setup.group
        assert public is not None
        assert setup.keyholder is not None
        assert setup.draw is not None
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._keyholder, self._draw = setup.keyholder, setup.draw
        self._name, self.ctx = name_of_key(public), context(BENEATH, setup.session, group, tag)
        self._ciphers = [public.cipher(chunk, len(group.members)) for chunk in tag.checked]
        self._sums: list[Any] = [None] * self.chunks
        self._blinds: list[Any] = []
        self._request = b""
        self._opened: Int64 | None = None
        self._lost = False
        public.prepare()

    def __repr__(self) -> str:
        return f"EncryptedOpener(turn {self._tag.turn}, key holder {self._keyholder!r})"

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one encrypted chunk."""
        self._tag.chunk(number)
        cipher = self._ciphers[number]
        if len(cells) < NAME_BYTES:
            raise PeerError(
                f"{len(cells)} bytes of an encrypted part, which has {NAME_BYTES} of its key alone"
            )
        if not hmac.compare_digest(cells[:NAME_BYTES], self._name):
            raise PeerError("cells that were encrypted under another key than this session's")
        more, total = cipher.read(cells[NAME_BYTES:]), self._sums[number]
        self._sums[number] = more if total is None else cipher.add(total, more)

    def lose(self, party: str) -> None:
        """Note that a party is disconnected: its vector is in the sum, only the key holder is needed
        again."""
        self._lost |= party == self._keyholder

    def requests(self) -> dict[str, bytes]:
        """The request to the key holder, until it has decrypted. The same bytes in every call."""
        if self._opened is not None:
            return {}
        if self._lost:
            raise RosterTooSmall(f"{self._keyholder}, who alone can open the sum, is lost")
        if any(total is None for total in self._sums):
            raise LocalProtocolError("a sum that nobody has added to is not opened")
        if not self._request:
            blinded = [
                cipher.blind(total, self._draw)
                for cipher, total in zip(self._ciphers, self._sums, strict=True)
            ]
            self._blinds = [blind for _, blind in blinded]
            self._request = packing.pack(self.ctx, *(sealed for sealed, _ in blinded))
        return {self._keyholder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in the plaintexts; PeerError if they do not answer the request, SessionFailed if they are no
        sum that the parties can have: the fault of the key holder or of a party, it is unknown which."""
        if party != self._keyholder or not self._request or self._opened is not None:
            raise PeerError("help that was not asked for")
        answers = packing.unpack(answer)
        if len(answers) != self.chunks:
            raise PeerError(f"{len(answers)} parts of plaintexts where {self.chunks} were asked for")
        opened = pairwise.zeros(self._tag)
        for chunk, cipher, plain, blind in zip(
            self._tag.checked, self._ciphers, answers, self._blinds, strict=True
        ):
            chunk.of(opened)[:] = cipher.unblind(plain, blind)
        self._opened = pairwise.checked_sum(opened, self._tag)  # modulo each cell's size: no carry
        self._sums, self._blinds = [], []

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self._opened is None:
            raise PeerError("the sum cannot be opened yet")
        return self._opened
