"""The two ends of each protection: `plain`, `masked` in one leg and in two legs, `paillier` over whole rows.

`plain` hides nothing: the aggregator sees every party's vector before adding it, as in an ordinary
data-parallel allreduce. It is for benchmarks, tests, and parties that trust the aggregator. Where few bins of
a node have rows, only their cells travel, so message lengths, which others see, depend on rows."""

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
"""Bytes of the public key's digest at the start of every sealed chunk."""


class PlainSealer(Sealer):
    """Packs a vector's integers into cells. sparsely: zeros may be left out."""

    unexpected_help = "received a request for help, which protection plain does not need"

    def __init__(self, sparsely: bool = True) -> None:
        self._sparsely = sparsely
        self._last: Tag | None = None

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        check_newer(tag, self._last)
        self._last = tag
        words = np.ascontiguousarray(values).view(np.uint64)
        packed = Chunk.packed_sparsely if self._sparsely else Chunk.packed
        return (packed(chunk, chunk.of(words)) for chunk in tag.chunks)


class PlainOpener(Opener):
    """Adds packed cells to one running sum."""

    unexpected_note = "a note, which protection plain does not have"
    unexpected_help = "help, which protection plain does not request"

    def __init__(self, tag: Tag) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._sum = np.zeros(tag.cells, np.uint64)

    def add(self, party: str, number: int, cells: bytes) -> None:
        chunk = self._tag.chunk(number)
        chunk.add_sparsely(chunk.of(self._sum), cells)

    def open(self) -> Int64:
        return signed(self._sum, self._tag.segments)


# ---- Protection `masked`: pairwise masks in one leg, and in two legs where the roster may change --------
# Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
# `colluding` parties. In one leg a party answers for all parties of the session or not at all. So a vector is
# never part of a smaller roster's sum, and nothing needs to be disclosed for the sum to open
# (docs/decisions/0016-masks-in-one-leg.md).
#
# A turn in one leg, with ctx = everything both ends must agree on:
#
#     upload   each u: y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)
#     open     the sum of y
#
# Promises: the sum over all parties opens, and no smaller sum. A sealed vector is treated as opened: it is
# open once all others have sealed theirs, however late those arrive. No party is asked for help.
# Refuses (PeerError): every roster other than all parties of the session, and the tags that `PairMasks.check`
# lists; notes and help, which one leg does not use.
#
# Why a smaller roster is refused, and not just unopenable: a party that sealed for all parties and later for
# all but one would release two sums whose difference is that party. Nothing withholds the first sum
# afterwards, since its masks need no help to cancel. So there is one roster, and a loss before the upload
# costs the attempt.
# Why an older or equal (turn, attempt) is refused: under one key and ctx two vectors have the same masks, and
# their difference is that of this party's own integers. So a tag is sealed once, and its keys are replaced.


class _MaskingSealer(Sealer):
    """Base of the party's ends that mask vectors with the streams of its pairs."""

    way = ONE_LEG

    def __init__(self, setup: PartySetup) -> None:
        self._me = setup.me
        self._group = setup.group
        self._pairs = PairMasks(setup, self.way)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._me!r})"

    @property
    def ctx(self) -> bytes:
        return self._pairs.ctx


class OneLegSealer(_MaskingSealer):
    """Masks one party's vectors with the streams of its pairs."""

    unexpected_help = "received a request for help with masks that cancel without help"

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        # Check first, then replace keys, then yield: keys are gone before the first masked byte leaves, so no
        # later request can make this party expand the same streams for another vector.
        # `seal` itself has no `yield`, so this happens in the call and not when the first chunk is taken.
        self._pairs.check(tag)
        check_whole(tag, self._group)
        streams = self._pairs.streams(tag)
        return (chunk.packed(words) for chunk, words in masked_chunks(values, tag, streams))


class OneLegOpener(Opener):
    """Adds masked chunks to one running sum, in which the masks cancel."""

    unexpected_note = "a note, which masks in one leg do not have"
    unexpected_help = "help, which masks in one leg do not request"

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        self.chunks = len(tag.chunks)
        self.ctx = context(ONE_LEG, setup.session, setup.group, tag)
        self._tag = tag
        self._sum = pairwise.zeros(tag)

    def add(self, party: str, number: int, cells: bytes) -> None:
        pairwise.add(self._sum, self._tag, number, cells)

    def open(self) -> Int64:
        """Return the sum, once every party's chunks are added. SessionFailed if the masks did not cancel."""
        return pairwise.checked_sum(self._sum, self._tag)


# ---- Shared by both ends of masked sums: commitments, sealed shares, self masks -------------------------


COMMIT, RECOVER = b"commit", b"recover"
"""Kinds of requests for help."""
NONCE = bytes(12)
"""Constant, since each key encrypts one share."""
SEALED_SHARE = pairwise.SHARE_BYTES + 16
"""Bytes of a share with its GCM tag."""


def commitment(mask: bytes, ctx: bytes, party: str) -> bytes:
    """Hash that commits a party to its self mask of a context: 32 bytes."""
    return hashlib.sha256(packing.pack(b"fedboost/1/commitment", mask, ctx, party.encode())).digest()


def name_of(field: bytes) -> str:
    """Decode a party's name. Raises PeerError if the field is not text."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise PeerError("help-name-invalid", "a party's name is not text") from None


def by_name(entries: list[bytes]) -> dict[str, bytes]:
    """Return party -> bytes, from fields that alternate between the two."""
    if len(entries) % 2 or len(set(entries[::2])) != len(entries) // 2:
        raise PeerError("help-fields-invalid", "a list of fields that does not have one field for each party")
    return {name_of(name): value for name, value in zip(entries[::2], entries[1::2], strict=True)}


def self_stream(mask: bytes, ctx: bytes, party: str) -> Stream:
    """Return the stream of a party's self mask under a context."""
    return Stream(derive(mask, b"self", ctx, party.encode()))


# ---- The party's end of masked sums in two legs: where the roster may shrink ----------------------------


class TwoLegSealer(_MaskingSealer):
    """Seals one party's vectors, and helps to open the sums they went into.

    Refuses (PeerError): a roster that names unknown parties, lacks this party, is smaller than the threshold,
    or differs from the one before; a turn or attempt that is not greater than the last; an upload after this
    turn's commit; a commit of an old attempt, with a share missing or not authentic, or of a turn that
    committed another attempt; a recovery before this party's own commit, or of too many parties."""

    way = TWO_LEGS

    def __init__(self, setup: PartySetup) -> None:
        super().__init__(setup)
        self._draw = setup.draw
        self._mask: bytes | None = None
        self._note = b""
        self._shares: dict[str, bytes] | None = None
        """Other parties' shares of this turn, once this party has committed to them."""
        self._share_keys: dict[tuple[str, str], bytes] = {}
        """(sender, receiver) -> key of a share of this turn."""

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        # What one turn looks like at this party, and what its state is after each message:
        #
        #     aggregator                      this party u
        #     Ask                     ->      seal: keys replaced, b_u drawn    _mask set, _shares None
        #                             <-      y_u, then the note
        #     OpenRequest commit      ->      all shares for u open             _shares set: committed
        #                             <-      b_u
        #     OpenRequest recover w   ->      the aggregator reports w as lost
        #                             <-      u's share of b_w, never a key of a pair
        self._check(tag)
        self._pairs.begin(tag)
        peers = set(tag.roster) - {self._me}
        ways = [(peer, way) for peer in peers for way in ((self._me, peer), (peer, self._me))]
        # A key per direction: NONCE is constant, and the two shares of a pair are different plaintexts. They
        # are derived before `replace_keys`, after which the keys of this context are gone.
        self._share_keys = {way: self._pairs.derived(peer, b"share", *way) for peer, way in ways}
        streams = self._pairs.masks(tag)
        self._pairs.replace_keys()
        # The new self mask overwrites that of an abandoned attempt, which this party then cannot disclose any
        # more: the vector of that attempt stays shut under any roster.
        mask = self._mask = self._draw(KEY_BYTES)
        self._note, self._shares = b"", None
        streams.append((self_stream(mask, self._pairs.ctx, self._me), True))
        return (chunk.packed(words) for chunk, words in masked_chunks(values, tag, streams))

    def note(self) -> bytes:
        """Return the note of the last chunk: a commitment to the self mask, and a sealed share of it per
        peer.

        It is made once: encrypting other shares under the same keys and nonce would reveal both."""
        tag = self._pairs.tag
        assert tag is not None
        if self._note:
            return self._note
        assert self._mask is not None
        peers = [peer for peer in sorted(tag.roster) if peer != self._me]
        # A point follows from the party's place among all members, so it is the same under every roster. The
        # own point lets a roster of just `threshold` parties seal; it can then open only if no party is lost.
        points = [self._group.point(party) for party in (*peers, self._me)]  # its own share is discarded
        shares = pairwise.split(int.from_bytes(self._mask), self._group.threshold, points, self._draw)
        sealed = []
        for peer, share in zip(peers, shares, strict=False):
            cipher = AESGCM(self._share_keys[self._me, peer])
            sealed += [peer.encode(), cipher.encrypt(NONCE, share.to_bytes(pairwise.SHARE_BYTES), None)]
        self._note = packing.pack(commitment(self._mask, self._pairs.ctx, self._me), *sealed)
        return self._note

    def assist(self, request: bytes) -> bytes:
        """Return this party's self mask, or its shares of lost parties' masks, as the request wants."""
        try:
            kind, ctx, *rest = packing.unpack(request)
        except ValueError:
            raise PeerError("help-request-empty", "an empty request for help") from None
        if self._pairs.tag is None or not hmac.compare_digest(ctx, self._pairs.ctx):
            raise PeerError("help-stale", "a request for help with a turn or attempt that is not the last")
        if kind == COMMIT:
            return self._commit(by_name(rest))
        if kind == RECOVER:
            return self._recover([name_of(party) for party in rest])
        raise PeerError("help-kind-unknown", "a request for an unknown kind of help")

    def _check(self, tag: Tag) -> None:
        self._pairs.check(tag)
        last = self._pairs.tag
        if len(tag.roster) < self._group.min_roster:
            raise PeerError(
                "roster-too-small",
                f"a roster of {len(tag.roster)}, fewer than {self._group.min_roster} parties",
            )
        if last is not None and tag.turn == last.turn and self._shares is not None:
            raise PeerError("turn-committed", f"turn {tag.turn} was committed: no other attempt is sealed")
        # A roster changes only with the attempt, which has new keys and a new sealer.
        if last is not None and set(tag.roster) != set(last.roster):
            raise PeerError("roster-changed", "the roster changed under the same keys")

    def _commit(self, sealed: dict[str, bytes]) -> bytes:
        assert self._pairs.tag is not None
        assert self._mask is not None
        # Exactly one share for each peer. With one fewer, self masks could be disclosed before d has sealed.
        # If the attempt is then abandoned and d seals late, two sums open that differ by d:
        #
        #     attempt 1    a  b  c       upload, and disclose their self masks too early
        #     attempt 2    a  b  c       upload for the smaller roster, and commit           a + b + c
        #     attempt 1             d    uploads late                                        a + b + c + d
        peers = set(self._pairs.tag.roster) - {self._me}
        if set(sealed) != peers:
            raise PeerError("commit-shares-missing", "asked to commit without every party's share")
        # A share opens only if its sender derived the same key, so under this ctx and roster. Once all shares
        # open, every party of the roster has sealed for this attempt, and this party may disclose its mask.
        shares = {}
        for peer in sorted(peers):
            try:
                shares[peer] = AESGCM(self._share_keys[peer, self._me]).decrypt(NONCE, sealed[peer], None)
            except InvalidTag:
                raise PeerError(
                    "share-not-authentic",
                    f"the share of party {peer} is not authentic: it was sealed under another session, turn "
                    f"or roster, or was changed in transit",
                ) from None
        # Another authentic share in place of the first means that its sender sealed two. `_recover` must not
        # answer about both.
        if self._shares is not None and shares != self._shares:
            raise PeerError("commit-repeated", "asked to commit twice with different shares")
        self._shares = shares
        return self._mask

    def _recover(self, lost: list[str]) -> bytes:
        assert self._pairs.tag is not None
        roster = self._pairs.tag.roster
        if self._shares is None:
            raise PeerError("recover-before-commit", "asked to recover before this party committed")
        # Only after its own commit: before, this party does not know that all sealed for this attempt, and
        # its share could help to open an abandoned one. If fewer than `threshold` parties are left, no honest
        # recovery can succeed, so such a request is refused as well.
        left = len(roster) - len(lost)
        twice = len(set(lost)) != len(lost)
        if twice or not set(lost) <= set(self._shares) or left < self._group.threshold:
            raise PeerError("recover-too-many", f"asked to recover {len(lost)} of {len(roster)} parties")
        answer = []
        for party in lost:
            answer += [party.encode(), self._shares[party]]
        return packing.pack(*answer)


# ---- Protection `masked` where the roster may shrink, in two legs ---------------------------------------
# The aggregator learns the sum of a turn and nothing else about it.
# Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
# `colluding` parties; a party lost after its upload does not cost the turn. The design is the secure
# aggregation of Bonawitz et al. (CCS 2017), with pairwise keys that are never shared and a short-lived self
# mask per turn. It has not been reviewed by others yet.
#
# A turn in two legs:
#
#     upload   each u: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx), and for
#              every other v a share of b_u, sealed under k_uv
#     commit   the aggregator relays the shares; each u checks that all are bound to ctx, then discloses b_u
#     recover  for a party that was lost after its upload: the others disclose their shares of its b
#     open     the sum of y minus the self masks
#
# Why in this order. Until all have uploaded, the aggregator may still abandon the attempt and ask a smaller
# roster. A b disclosed by then would let it open both sums, whose difference is the parties that left. So b
# is disclosed only in exchange for the shares of the whole roster, which prove that all sealed for this
# attempt. After that, this sealer seals no other attempt of the turn, and the site remembers the roster that
# it helped (`check_due` in protocol/party.py).
# A party lost between upload and commit cannot disclose its b although its vector is in the sum, so its b is
# recovered from shares. Pairwise keys are never shared: no request can reveal a b and the masks of its pairs.
#
# Promises: a tag is sealed once; a vector uploaded for an attempt that did not commit can never be opened;
# pairwise keys are replaced after each vector and never leave the party.
# Refuses: see `TwoLegSealer`; each rule has a test named after it in tests/privacy/masked.


class TwoLegOpener(Opener):
    """Adds masked chunks to one running sum, collects the help, and opens the sum.

    It can never open a sum over less than the whole roster: pairwise masks cancel only in the whole sum.
    Raises RosterTooSmall when too few parties are left to recover a self mask."""

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
        pairwise.add(self._sum, self._tag, number, cells)

    def note(self, party: str, note: bytes) -> None:
        """Take in a party's commitment to its self mask, and its sealed shares of the mask."""
        try:
            commitment, *sealed = packing.unpack(note)
        except ValueError:
            raise PeerError("commitment-missing", "its report has no commitment") from None
        shares = by_name(sealed)
        if set(shares) != set(self._tag.roster) - {party}:
            raise PeerError("shares-incomplete", "its shares are not one for every other party of the roster")
        if len(commitment) != KEY_BYTES or any(len(share) != SEALED_SHARE for share in shares.values()):
            raise PeerError("commitment-length", "its commitment or its shares have an invalid length")
        self._commitments[party], self._sealed[party] = commitment, shares

    def requests(self) -> dict[str, bytes]:
        present = [party for party in sorted(self._tag.roster) if party not in self._lost]
        # Lost is not missing: a party that was lost after its commit has disclosed its mask.
        missing = sorted(party for party in self._lost if party not in self._masks)
        if missing and len(present) < self._group.threshold:
            raise RosterTooSmall(
                "roster-too-small",
                f"{len(present)} of {len(self._tag.roster)} parties are left, {self._group.threshold} are "
                f"needed to open the sum without {', '.join(missing)}",
            )
        uncommitted = [party for party in present if party not in self._masks]
        if uncommitted:
            sealed = sorted(self._sealed.items())
            # All present parties commit before any is asked to recover. Shares of lost parties are relayed,
            # too: their vectors are in the sum, and a commit requires the shares of the whole roster.
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
        """Note that a party disconnected after its upload: its mask is recovered from the others."""
        self._lost.add(party)

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help. Raises PeerError if it does not answer the request, SessionFailed if the
        shares do not recover a lost party's mask."""
        if party not in self._commitments:
            raise PeerError("help-without-report", "it sent help without a report")
        # A party's first help is always its own mask, since only parties without one were asked to commit.
        if party not in self._masks:
            if not self._is_of(party, answer):
                raise PeerError("self-mask-wrong", f"party {party} did not commit to this self mask")
            self._masks[party] = answer
            return
        answered = by_name(packing.unpack(answer))
        if not answered or set(answered) != self._missing:
            raise PeerError("help-mismatched", "its help does not answer the request")
        for lost, share in answered.items():
            if len(share) != pairwise.SHARE_BYTES:
                raise PeerError("help-mismatched", "its help does not answer the request")
            shares = self._shares.setdefault(lost, {})
            shares[self._group.point(party)] = int.from_bytes(share)
            if len(shares) == self._group.threshold and lost not in self._masks:
                self._masks[lost] = self._recovered(lost, shares)

    def _recovered(self, lost: str, shares: Mapping[int, int]) -> bytes:
        """Recover a lost party's mask. If that fails, it is unknown who is at fault: not the last helper."""
        with contextlib.suppress(PeerError, OverflowError):
            mask = pairwise.combine(shares).to_bytes(KEY_BYTES)
            if self._is_of(lost, mask):
                return mask
        raise SessionFailed(
            "self-mask-unrecoverable",
            f"the self mask of the lost party {lost} cannot be recovered: its shares do not match its "
            f"commitment, so party {lost} dealt wrong shares, or a party that helped changed its share",
        )

    def _is_of(self, party: str, mask: bytes) -> bool:
        return hmac.compare_digest(commitment(mask, self.ctx, party), self._commitments[party])

    def open(self) -> Int64:
        if self.requests():
            raise PeerError("sum-not-open", "the sum cannot be opened yet")
        scratch = scratch_of(self._tag)
        for party in self._tag.roster:
            stream = self_stream(self._masks[party], self.ctx, party)
            for chunk in self._tag.checked:
                chunk.subtract(chunk.of(self._sum), stream.next(chunk.size, scratch))
        return pairwise.checked_sum(self._sum, self._tag)


# ---- Protection `paillier`: the aggregator adds masked ciphertexts, and a key holder opens the sum ------
# Designed for: consortia whose rules require encryption. The aggregator never has the secret key. But if it
# lies, it can have something other than a sum opened, and the key holder cannot detect that. So the masks of
# `pairwise` lie beneath the encryption: even with the secret key, a party's vector is uniformly random, and
# only the sum over all parties is not.
#
# A turn, with ctx = everything that both ends must agree on:
#
#     upload   each party: its cells plus its masks modulo the cell's 2**bits, encrypted under the session's
# key
#     blind    the aggregator adds up the ciphertexts, adds a number drawn from all plaintexts to each, which
#              also randomises it again, and sends them with ctx to the key holder
#     assist   the key holder decrypts the blinded sum, which is uniform noise to it, once per turn, and
# counts
#     open     the aggregator subtracts its numbers, and drops what the masks carried above a cell's bits
#
# Promises: the key holder learns nothing about a sum except its number of cells. An aggregator that lies, or
# has the key, learns no more than the sum over all parties, as long as two parties with rows do not collude
# with it. A tag is sealed once; the same request gets the same answer, another one in the same turn gets
# none.
# Refuses (PeerError): rosters other than all parties; ciphertexts of another key, out of range, or not as
# many as the cells need; keys that are too short or invalid; more openings than the terms have sums.


class KeyHolder:
    """Opens blinded sums: only of the tag announced last, and only one per turn.

    Two sums of one turn could differ in a single party. So once a sum of a turn was opened, no other attempt
    of that turn is opened."""

    def __init__(self, secret: "Secret", group: Group, session: bytes, max_openings: int) -> None:
        self._secret = secret
        self._group = group
        self._session = session
        self._most = max_openings
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Number of sums opened so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """Allow a request for this sum from now on. Raises PeerError if the tag is not newer than the last,
        if its turn was opened, or if its roster is not all parties."""
        check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError("turn-opened", f"turn {tag.turn} was opened: no other attempt of it can be")
        check_whole(tag, self._group)
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """Return the plaintexts of the blinded sum of the tag announced last."""
        if not request:
            raise PeerError("help-request-empty", "an empty request for help")
        ctx, *sealed = packing.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError("help-stale", "asked to open a sum that is not this session's last")
        request_digest = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(request_digest, self._request):
                raise PeerError("opening-other", f"asked to open turn {tag.turn} again with another request")
            return self._answer
        if self.openings >= self._most:
            raise PeerError("openings-exceeded", f"asked to open more than the terms' {self._most} sums")
        if len(sealed) != len(tag.chunks):
            raise PeerError("opening-parts", f"asked to open {len(sealed)} of {len(tag.chunks)} parts")
        parties = len(self._group.members)
        ciphers = [self._secret.public.cipher(chunk, parties) for chunk in tag.checked]
        read = [cipher.read(chunk) for cipher, chunk in zip(ciphers, sealed, strict=True)]
        # A malformed request has raised by now, and costs nothing. From here on the turn counts as opened. If
        # decryption fails, `_request` is set and `_answer` is empty: the turn stays shut.
        self._opened_turn = tag.turn
        self._request = request_digest  # no other request is answered from here on
        self.openings += 1
        self._answer = packing.pack(*map(self._secret.decrypt, read))
        return self._answer


def name_of_key(public: "Public") -> bytes:
    """Return the first NAME_BYTES bytes of a public key's digest."""
    return hashlib.sha256(packing.pack(b"fedboost/1/public", public.to_bytes())).digest()[:NAME_BYTES]


class EncryptedSealer(_MaskingSealer):
    """Masks one party's vectors and encrypts them under the session's key. With the secret key, it also helps
    to open the sums.

    Refuses (PeerError): the tags that `PairMasks.check` refuses; a roster other than all parties; help
    without the secret key, and the requests that `KeyHolder` refuses."""

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
        """Number of sums that this party helped to open."""
        return self._holder.openings if self._holder else 0

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
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
        if self._holder is None:
            raise PeerError("secret-key-missing", "asked to open a sum without having the secret key")
        return self._holder.assist(request)


class EncryptedOpener(Opener):
    """Adds encrypted chunks to one running sum, has it opened by the key holder, and removes the blind.

    Raises RosterTooSmall when the key holder is lost: no other party can open the sum."""

    unexpected_note = "a note, which encrypted cells do not have"

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
        self._tag.chunk(number)
        cipher = self._ciphers[number]
        if len(cells) < NAME_BYTES:
            raise PeerError(
                "cells-length",
                f"{len(cells)} bytes of cells, fewer than the key name's {NAME_BYTES}",
            )
        if not hmac.compare_digest(cells[:NAME_BYTES], self._name):
            raise PeerError("cells-other-key", "cells encrypted under a key that is not this session's")
        more, total = cipher.read(cells[NAME_BYTES:]), self._sums[number]
        self._sums[number] = more if total is None else cipher.add(total, more)

    def lose(self, party: str) -> None:
        self._lost |= party == self._keyholder

    def requests(self) -> dict[str, bytes]:
        """Return the request to the key holder, the same bytes in every call, until it has decrypted."""
        if self._opened is not None:
            return {}
        if self._lost:
            raise RosterTooSmall("key-holder-lost", f"{self._keyholder} is lost: no one else can open sums")
        if any(total is None for total in self._sums):
            raise LocalProtocolError("sum-empty", "a sum to which no party has added cannot be opened")
        # Blinded once per sum: the key holder answers only one request per turn.
        if not self._request:
            blinded = [
                cipher.blind(total, self._draw)
                for cipher, total in zip(self._ciphers, self._sums, strict=True)
            ]
            self._blinds = [blind for _, blind in blinded]
            self._request = packing.pack(self.ctx, *(sealed for sealed, _ in blinded))
        return {self._keyholder: self._request}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in the plaintexts. Raises PeerError if they do not answer the request, SessionFailed if they
        cannot be a sum of the parties: the fault of the key holder or of a party, it is unknown which."""
        if party != self._keyholder or not self._request or self._opened is not None:
            raise PeerError("help-unexpected", "help that was not requested")
        answers = packing.unpack(answer)
        if len(answers) != self.chunks:
            raise PeerError("opening-parts", f"{len(answers)} parts of plaintexts, expected {self.chunks}")
        opened = pairwise.zeros(self._tag)
        for chunk, cipher, plain, blind in zip(
            self._tag.checked, self._ciphers, answers, self._blinds, strict=True
        ):
            chunk.of(opened)[:] = cipher.unblind(plain, blind)
        self._opened = pairwise.checked_sum(opened, self._tag)  # modulo each cell's 2**bits: no carry
        self._sums, self._blinds = [], []

    def open(self) -> Int64:
        if self._opened is None:
            raise PeerError("sum-not-open", "the sum cannot be opened yet")
        return self._opened
