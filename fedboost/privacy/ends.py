"""The party's end (sealer) and the aggregator's end (opener) of each protection: `plain`, `masked` with one
or two messages per party (legs), and `paillier` where parties hold different rows.

`plain` hides nothing: the aggregator sees every party's vector before adding it, as in an ordinary
data-parallel allreduce. It is for benchmarks, tests, and parties that trust the aggregator. If few bins of a
node have rows, only the nonzero cells are sent. Message lengths then depend on the rows, and others can
observe these lengths."""

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
    check_whole,
    context,
    derive,
    mask,
)
from fedboost.privacy.protection import Opener, Sealer, Tag, check_newer

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

NAME_BYTES = 16
"""Number of bytes of the public key's digest at the start of each sealed chunk."""


class PlainSealer(Sealer):
    """Packs a party's integers into cells without hiding them. sparsely: True to be able to omit zeros."""

    unexpected_help = "the aggregator asked this party to help open a sum, but protection plain needs no help"

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
    """Adds the parties' packed cells to a running sum at the aggregator."""

    unexpected_note = "it sent a note with its report, but protection plain has no notes"
    unexpected_help = "it sent an answer that was not requested: protection plain needs no help to open a sum"
    checked_chunks = False

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
# `colluding` parties. In one leg, a party answers for all parties of the session or not at all. So a vector
# is never part of a smaller roster's sum, and the sum opens without any further disclosure
# (docs/decisions/0016-masks-in-one-leg.md).
#
# A turn in one leg, with ctx = everything both ends must agree on:
#
#     upload   each u: y_u = x_u + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx)
#     open     the sum of y
#
# Guarantees: the sum over all parties can be opened, but no sum over fewer parties. A sealed vector must be
# regarded as opened: the sum opens once all other parties have sealed theirs, however late those vectors
# arrive. No party is asked to help.
# Raises: PeerError for a roster that lacks parties of the session, for the tags that `PairMasks.check`
# rejects, and for notes and answers, which one leg does not use.
#
# Why a smaller roster is rejected, although it could not be opened: a party that sealed for all parties and
# later for all but one would release two sums whose difference is that party's vector. Nothing protects the
# first sum afterwards, since its masks cancel without help. So there is one roster, and a disconnection
# before the upload ends the attempt.
# Why an older or equal (turn, attempt) is rejected: under one key and ctx two vectors have the same masks,
# and the difference of the sealed vectors is the difference of this party's integers. So a tag is sealed
# once, and its keys are replaced.


class _MaskingSealer(Sealer):
    """Base of the sealers that hide a party's vectors with masks, each shared with one other party."""

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
    """Masks a party's vectors with keystreams that the party shares with others. The masks cancel in the sum
    over all parties, so each party sends a single message (one leg)."""

    unexpected_help = (
        "the aggregator asked this party to help open a sum, but these masks cancel without help"
    )

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        # Check first, then replace keys, then yield: the keys are erased before the first masked byte is
        # sent, so no later request can make this party expand the same streams for another vector.
        # `seal` itself has no `yield`, so this happens in the call and not when the first chunk is taken.
        self._pairs.check(tag)
        check_whole(tag, self._group)
        self._pairs.begin(tag)
        return (chunk.packed(words) for chunk, words in self._pairs.masked(values, tag))


class OneLegOpener(Opener):
    """Adds masked chunks to a running sum at the aggregator. The masks cancel once all are added."""

    unexpected_note = "it sent a note with its report, but masks in one leg have no notes"
    unexpected_help = "it sent an answer that was not requested: masks in one leg need no help to open a sum"
    checked_chunks: bool | None = True
    way = ONE_LEG

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        self.chunks = len(tag.chunks)
        self.ctx = context(self.way, setup.session, setup.group, tag)
        self._tag = tag
        self._sum = pairwise.zeros(tag)

    def add(self, party: str, number: int, cells: bytes) -> None:
        pairwise.add(self._sum, self._tag, number, cells)

    def open(self) -> Int64:
        """Return the sum, after all parties' chunks. Raises SessionFailed if the masks did not cancel."""
        return pairwise.checked_sum(self._sum, self._tag)


# ---- Shared by both ends of masked sums: commitments, sealed shares, self masks -------------------------


COMMIT, RECOVER = b"commit", b"recover"
"""Requests to a party: to disclose its own self mask, or its shares of lost parties' self masks."""
NONCE = bytes(12)
"""The AES-GCM nonce. It can be constant, because each key encrypts only one share."""
SEALED_SHARE = pairwise.SHARE_BYTES + 16
"""Size in bytes of an encrypted share, including its GCM tag."""


def commitment(mask: bytes, ctx: bytes, party: str) -> bytes:
    """Return a party's commitment to its self mask in a context: a 32-byte hash."""
    return hashlib.sha256(packing.pack(b"fedboost/1/commitment", mask, ctx, party.encode())).digest()


def name_of(field: bytes) -> str:
    """Decode a party's name. Raises PeerError if the bytes are not UTF-8."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise PeerError("help-name-invalid", "a party's name is not valid UTF-8") from None


def by_name(entries: list[bytes]) -> dict[str, bytes]:
    """Return a dictionary of party name -> bytes, from a list in which names and values alternate. Raises
    PeerError if a value is missing or a name is repeated."""
    if len(entries) % 2 or len(set(entries[::2])) != len(entries) // 2:
        raise PeerError("help-fields-invalid", "a list must have exactly one field for each party it names")
    return {name_of(name): value for name, value in zip(entries[::2], entries[1::2], strict=True)}


def self_key(mask: bytes, ctx: bytes, party: str) -> bytes:
    """Return the key of the keystream that follows from a party's self mask in a context."""
    return derive(mask, b"self", ctx, party.encode())


# ---- The party's end of masked sums in two legs: where the roster may shrink ----------------------------


class TwoLegSealer(_MaskingSealer):
    """Masks a party's vectors in sessions that may continue without lost parties, and helps to open the sums.

    In addition to the masks shared with others, each vector has a self mask. The party discloses it in a
    second message (leg), or the other parties recover it if the party is lost.

    Raises PeerError for a roster that is too small, contains unknown parties, does not contain this party, or
    has changed although the keys have not. Raises PeerError for a tag that is not newer than the last one, or
    if this party has already disclosed its self mask for the tag's turn. Raises PeerError for a request to
    commit with an old context, or with missing, forged or changed shares. Raises PeerError for a request to
    recover before this party's commit, or to recover too many parties."""

    way = TWO_LEGS

    def __init__(self, setup: PartySetup) -> None:
        super().__init__(setup)
        self._draw = setup.draw
        self._mask: bytes | None = None
        self._note = b""
        self._shares: dict[str, bytes] | None = None
        """Maps party -> this party's share of that party's self mask; None until this party has disclosed its
        own self mask in this turn."""
        self._share_keys: dict[tuple[str, str], bytes] = {}
        """Maps (sender, receiver) -> key that encrypts a share of this turn."""

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
        # are derived before `masked` replaces the keys.
        self._share_keys = {way: self._pairs.derived(peer, b"share", *way) for peer, way in ways}
        # The new self mask overwrites the mask of an abandoned attempt, so this party can no longer disclose
        # the old mask: the vector of that attempt can never be opened, under any roster.
        self._mask = self._draw(KEY_BYTES)
        self._note, self._shares = b"", None
        own = self_key(self._mask, self._pairs.ctx, self._me), True
        return (chunk.packed(words) for chunk, words in self._pairs.masked(values, tag, own))

    def note(self) -> bytes:
        """Return the note sent with the last chunk: a commitment to the self mask, and an encrypted share of
        it for each peer.

        The note is created only once per vector, because encrypting different shares under the same keys and
        nonce would reveal all of them."""
        tag = self._pairs.tag
        assert tag is not None
        if self._note:
            return self._note
        assert self._mask is not None
        peers = [peer for peer in sorted(tag.roster) if peer != self._me]
        # A party's point follows from its position among all members, so it is the same under every roster.
        # This party's own point is included so that a roster of exactly `threshold` parties can seal; such a
        # roster can open the sum only if no party is lost.
        points = [self._group.point(party) for party in (*peers, self._me)]  # its own share is discarded
        shares = pairwise.split(int.from_bytes(self._mask), self._group.threshold, points, self._draw)
        sealed = []
        for peer, share in zip(peers, shares, strict=False):
            cipher = AESGCM(self._share_keys[self._me, peer])
            sealed += [peer.encode(), cipher.encrypt(NONCE, share.to_bytes(pairwise.SHARE_BYTES), None)]
        self._note = packing.pack(commitment(self._mask, self._pairs.ctx, self._me), *sealed)
        return self._note

    def assist(self, request: bytes) -> bytes:
        """Return this party's self mask, or its shares of lost parties' self masks, depending on the request.
        Raises PeerError if the request is not allowed."""
        try:
            kind, ctx, *rest = packing.unpack(request)
        except ValueError:
            raise PeerError("help-request-empty", "the aggregator sent an empty request") from None
        if self._pairs.tag is None or not hmac.compare_digest(ctx, self._pairs.ctx):
            raise PeerError(
                "help-stale",
                "the aggregator sent a request about a turn or attempt that is no longer current",
            )
        if kind == COMMIT:
            return self._commit(by_name(rest))
        if kind == RECOVER:
            return self._recover([name_of(party) for party in rest])
        raise PeerError("help-kind-unknown", "the aggregator sent a request of an unknown kind")

    def _check(self, tag: Tag) -> None:
        self._pairs.check(tag)
        last = self._pairs.tag
        if len(tag.roster) < self._group.min_roster:
            raise PeerError(
                "roster-too-small",
                f"the roster has {len(tag.roster)} parties, but at least {self._group.min_roster} are needed",
            )
        if last is not None and tag.turn == last.turn and self._shares is not None:
            raise PeerError("turn-committed", f"turn {tag.turn} was committed, so it cannot be sealed again")
        # A roster changes only with the attempt, which has new keys and a new sealer.
        if last is not None and set(tag.roster) != set(last.roster):
            raise PeerError("roster-changed", "the roster changed, but the keys did not")

    def _commit(self, sealed: dict[str, bytes]) -> bytes:
        assert self._pairs.tag is not None
        assert self._mask is not None
        # Exactly one share for each peer. Without the share of d, self masks could be disclosed before d has
        # sealed. If the attempt is then abandoned and d seals late, two sums open, which differ by d:
        #
        #     attempt 1    a  b  c       upload, and disclose their self masks too early
        #     attempt 2    a  b  c       upload for the smaller roster, and commit           a + b + c
        #     attempt 1             d    uploads late                                        a + b + c + d
        peers = set(self._pairs.tag.roster) - {self._me}
        if set(sealed) != peers:
            raise PeerError(
                "commit-shares-missing",
                "the aggregator asked for the self mask without sending one share from each other party",
            )
        # A share opens only if its sender derived the same key, so under this ctx and roster. Once all shares
        # open, every party of the roster has sealed for this attempt, and this party may disclose its mask.
        shares = {}
        for peer in sorted(peers):
            try:
                shares[peer] = AESGCM(self._share_keys[peer, self._me]).decrypt(NONCE, sealed[peer], None)
            except InvalidTag:
                raise PeerError(
                    "share-not-authentic",
                    f"the share from party {peer} is not authentic: it is for a different session, turn or "
                    f"roster, or was changed in transit",
                ) from None
        # Another authentic share in place of the first means that its sender sealed two. `_recover` must not
        # answer about both.
        if self._shares is not None and shares != self._shares:
            raise PeerError(
                "commit-repeated", "the aggregator asked for the self mask twice, with different shares"
            )
        self._shares = shares
        return self._mask

    def _recover(self, lost: list[str]) -> bytes:
        assert self._pairs.tag is not None
        roster = self._pairs.tag.roster
        if self._shares is None:
            raise PeerError(
                "recover-before-commit",
                "the aggregator asked for shares of lost parties before this party disclosed its self mask",
            )
        # Only after its own commit: before, this party does not know that all sealed for this attempt, and
        # its share could help to open an abandoned one. If fewer than `threshold` parties are left, no honest
        # recovery can succeed, so such a request is refused as well.
        left = len(roster) - len(lost)
        twice = len(set(lost)) != len(lost)
        if twice or not set(lost) <= set(self._shares) or left < self._group.threshold:
            raise PeerError(
                "recover-too-many",
                f"the aggregator asked for shares of {len(lost)} of {len(roster)} parties, which is too many",
            )
        answer = []
        for party in lost:
            answer += [party.encode(), self._shares[party]]
        return packing.pack(*answer)


# ---- Protection `masked` where the roster may shrink, in two legs ---------------------------------------
# The aggregator learns the sum of a turn and nothing else about it.
# Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
# `colluding` parties; a party that is lost after its upload does not invalidate the turn. The design is the
# secure aggregation of Bonawitz et al. (CCS 2017), with pairwise keys that are never shared and a short-lived
# self mask per turn. It has not been reviewed by others yet.
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
# roster. A b disclosed by then would let it open both sums, whose difference is the vectors of the parties
# that left. So b is disclosed only in exchange for the shares of the whole roster, which prove that all
# sealed for this attempt. After that, this sealer seals no other attempt of the turn, and the site remembers
# the roster whose sum it helped to open (`check_due` in protocol/party.py).
# A party lost between upload and commit cannot disclose its b although its vector is in the sum, so its b is
# recovered from shares. Pairwise keys are never shared: no request can reveal a b and the masks of its pairs.
#
# Guarantees: a tag is sealed once; a vector uploaded for an attempt that did not commit can never be opened;
# pairwise keys are replaced after each vector and never leave the party.
# Raises: see `TwoLegSealer`; each rule has a test named after it in tests/privacy/masked.


class TwoLegOpener(OneLegOpener):
    """Adds masked chunks to a running sum, collects self masks or shares of them, and opens the sum.

    It can only open the sum over the whole roster, because the masks shared by pairs cancel only in that sum.
    Raises RosterTooSmall if too few parties are left to recover a lost party's self mask."""

    checked_chunks = None
    way = TWO_LEGS

    def __init__(self, tag: Tag, setup: AggregatorSetup) -> None:
        super().__init__(tag, setup)
        self._group = setup.group
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._masks: dict[str, bytes] = {}
        self._shares: dict[str, dict[int, int]] = {}
        self._lost: set[str] = set()
        self._missing: set[str] = set()
        """Parties whose self masks the others were asked to recover."""

    def note(self, party: str, note: bytes) -> None:
        """Store a party's commitment to its self mask, and its encrypted shares of the mask. Raises PeerError
        if they are incomplete or malformed."""
        try:
            commitment, *sealed = packing.unpack(note)
        except ValueError:
            raise PeerError("commitment-missing", "its report has no commitment to a self mask") from None
        shares = by_name(sealed)
        if set(shares) != set(self._tag.roster) - {party}:
            raise PeerError(
                "shares-incomplete", "its report does not have one share for each other party of the roster"
            )
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
                f"only {len(present)} of {len(self._tag.roster)} parties are left, but "
                f"{self._group.threshold} are needed to open the sum without {', '.join(missing)}",
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
        """Record that a party disconnected after its upload. Unless the party has disclosed its self mask,
        the mask is recovered from the other parties' shares."""
        self._lost.add(party)

    def assist(self, party: str, answer: bytes) -> None:
        """Store the self mask that a party sent, or its shares of lost parties' self masks. Raises PeerError
        if the answer does not match the request, and SessionFailed if the shares do not yield a lost party's
        self mask."""
        if party not in self._commitments:
            raise PeerError(
                "help-without-report", "it answered a request for self masks without having sent a report"
            )
        # A party's first answer is always its own mask, since each party is asked to commit first.
        if party not in self._masks:
            if not self._is_of(party, answer):
                raise PeerError(
                    "self-mask-wrong", f"the self mask of party {party} does not match its commitment"
                )
            self._masks[party] = answer
            return
        answered = by_name(packing.unpack(answer))
        if not answered or set(answered) != self._missing:
            raise PeerError("help-mismatched", "its answer does not match the request")
        for lost, share in answered.items():
            if len(share) != pairwise.SHARE_BYTES:
                raise PeerError("help-mismatched", "its answer does not match the request")
            shares = self._shares.setdefault(lost, {})
            shares[self._group.point(party)] = int.from_bytes(share)
            if len(shares) == self._group.threshold and lost not in self._masks:
                self._masks[lost] = self._recovered(lost, shares)

    def _recovered(self, lost: str, shares: Mapping[int, int]) -> bytes:
        """Recover a lost party's self mask from shares. If that fails, any party that dealt or disclosed a
        share may be at fault, so no party is blamed."""
        with contextlib.suppress(PeerError, OverflowError):
            mask = pairwise.combine(shares).to_bytes(KEY_BYTES)
            if self._is_of(lost, mask):
                return mask
        raise SessionFailed(
            "self-mask-unrecoverable",
            f"the self mask of lost party {lost} cannot be recovered: the shares do not match its "
            f"commitment, so party {lost} sent wrong shares, or another party changed its share",
        )

    def _is_of(self, party: str, mask: bytes) -> bool:
        return hmac.compare_digest(commitment(mask, self.ctx, party), self._commitments[party])

    def open(self) -> Int64:
        if self.requests():
            raise PeerError("sum-not-open", "the sum cannot be opened yet")
        keys = [(self_key(own, self.ctx, party), False) for party, own in self._masks.items()]
        for _ in mask(self._sum, self._tag, keys):
            pass
        return super().open()


# ---- Protection `paillier`: the aggregator adds masked ciphertexts, and a key holder opens the sum ------
# Designed for: consortia whose rules require encryption. The aggregator never has the secret key. But an
# aggregator that lies can have something other than a sum opened, and the key holder cannot detect this. So
# vectors are masked (`pairwise`) before they are encrypted. Even after decryption, a party's vector is
# uniformly random, and only the sum over all parties is not.
#
# A turn, with ctx = everything that both ends must agree on:
#
#     upload   each party: its cells plus its masks modulo the cell's 2**bits, encrypted under the session's
#              key
#     blind    the aggregator adds up the ciphertexts, adds a number drawn from all plaintexts to each, which
#              also randomises it again, and sends them with ctx to the key holder
#     assist   the key holder decrypts the blinded sum, which is uniform noise to it, once per turn, and
#              counts its answers
#     open     the aggregator subtracts its numbers, and drops the carries above each cell's bits
#
# Guarantees: the key holder learns nothing about a sum except its number of cells. An aggregator that lies,
# or has the key, learns only the sum over all parties, as long as two parties with rows do not collude with
# it. A tag is sealed once. The same request gets the same answer; a different one in the same turn is
# rejected.
# Raises: PeerError for rosters that lack parties; for a wrong number of ciphertexts, or ciphertexts that are
# under another key or out of range; for keys that are too short or invalid; and for more openings than the
# terms have sums.


class KeyHolder:
    """Decrypts blinded sums with the secret key, at most one per turn.

    It decrypts only the sum announced last. Once it has decrypted the sum of a turn, it does not decrypt a
    sum from another attempt at that turn, because two sums of one turn could differ by a single party's
    vector."""

    def __init__(self, secret: "Secret", group: Group, session: bytes, max_openings: int) -> None:
        self._secret = secret
        self._group = group
        self._session = session
        self._most = max_openings
        self._tag: Tag | None = None
        self._opened_turn = -1
        self._request, self._answer = b"", b""
        self.openings = 0
        """Number of sums decrypted so far."""

    def __repr__(self) -> str:
        return f"KeyHolder({self.openings} of at most {self._most} sums opened)"

    def announce(self, tag: Tag) -> None:
        """Allow requests for the sum of this tag, and for no other. Raises PeerError if the tag is not newer
        than the last one, if a sum of its turn has already been decrypted, or if its roster is incomplete."""
        check_newer(tag, self._tag)
        if tag.turn <= self._opened_turn:
            raise PeerError(
                "turn-opened", f"the sum of turn {tag.turn} was opened, so the turn cannot be repeated"
            )
        check_whole(tag, self._group)
        self._tag = tag
        self._request, self._answer = b"", b""

    def assist(self, request: bytes) -> bytes:
        """Return the plaintexts of the blinded sum of the last announced tag. Raises PeerError if the request
        is malformed or for a different sum, or if the limit on openings has been reached."""
        if not request:
            raise PeerError("help-request-empty", "the aggregator sent an empty request")
        ctx, *sealed = packing.unpack(request)
        tag = self._tag
        if tag is None or not hmac.compare_digest(ctx, context(BENEATH, self._session, self._group, tag)):
            raise PeerError(
                "help-stale", "the aggregator asked for a sum that is not the last one of this session"
            )
        request_digest = hashlib.sha256(request).digest()
        if self._request:
            if not self._answer or not hmac.compare_digest(request_digest, self._request):
                raise PeerError(
                    "opening-other",
                    f"the aggregator asked twice for the sum of turn {tag.turn}, with different requests",
                )
            return self._answer
        if self.openings >= self._most:
            raise PeerError(
                "openings-exceeded",
                f"the aggregator asked for more than the {self._most} sums that the terms allow",
            )
        if len(sealed) != len(tag.chunks):
            raise PeerError(
                "opening-parts",
                f"the aggregator asked for {len(sealed)} parts of a sum that has {len(tag.chunks)} parts",
            )
        parties = len(self._group.members)
        ciphers = [self._secret.public.cipher(chunk, parties) for chunk in tag.checked]
        read = [cipher.read(chunk) for cipher, chunk in zip(ciphers, sealed, strict=True)]
        # A malformed request has raised an error by now, and does not count as an opening. From here on, the
        # turn counts as opened. If decryption fails, `_request` is set and `_answer` is empty, so the turn
        # can no longer be opened.
        self._opened_turn = tag.turn
        self._request = request_digest  # no other request is answered from here on
        self.openings += 1
        self._answer = packing.pack(*map(self._secret.decrypt, read))
        return self._answer


def name_of_key(public: "Public") -> bytes:
    """Return the first NAME_BYTES bytes of the public key's digest, which identify the key."""
    return hashlib.sha256(packing.pack(b"fedboost/1/public", public.to_bytes())).digest()[:NAME_BYTES]


class EncryptedSealer(_MaskingSealer):
    """Masks a party's vectors and encrypts them with the session's public key. At the key holder, it also
    decrypts blinded sums.

    Raises PeerError for tags rejected by `PairMasks.check`, incomplete rosters, requests to decrypt a sum if
    this party does not have the secret key, and requests rejected by `KeyHolder`."""

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
        """Number of sums that this party has decrypted."""
        return self._holder.openings if self._holder else 0

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        self._pairs.check(tag)
        check_whole(tag, self._group)
        if self._holder is not None:
            self._holder.announce(tag)
        self._pairs.begin(tag)
        return (self._encrypted(chunk, words) for chunk, words in self._pairs.masked(values, tag))

    def _encrypted(self, chunk: Chunk, masked: Words) -> bytes:
        cipher = self._public.cipher(chunk, len(self._group.members))
        return self._name + cipher.encrypt(chunk.residues(masked))

    def assist(self, request: bytes) -> bytes:
        if self._holder is None:
            raise PeerError(
                "secret-key-missing",
                "the aggregator asked this party to decrypt a sum, but this party lacks the secret key",
            )
        return self._holder.assist(request)


class EncryptedOpener(Opener):
    """Adds encrypted chunks to a running sum, blinds the sum, has the key holder decrypt it, and removes the
    blind.

    Raises RosterTooSmall if the key holder is lost, because no other party can decrypt the sum."""

    unexpected_note = "it sent a note with its report, but encrypted cells have no notes"

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
                f"it sent {len(cells)} bytes of cells, which is too short: the key's digest alone takes "
                f"{NAME_BYTES} bytes",
            )
        if not hmac.compare_digest(cells[:NAME_BYTES], self._name):
            raise PeerError("cells-other-key", "it encrypted cells with a key that is not this session's")
        more, total = cipher.read(cells[NAME_BYTES:]), self._sums[number]
        self._sums[number] = more if total is None else cipher.add(total, more)

    def lose(self, party: str) -> None:
        self._lost |= party == self._keyholder

    def requests(self) -> dict[str, bytes]:
        """Return the request to the key holder, or an empty dictionary once the sum has been decrypted.
        Repeated calls return the same bytes."""
        if self._opened is not None:
            return {}
        if self._lost:
            raise RosterTooSmall(
                "key-holder-lost", f"{self._keyholder} disconnected, and no other party can decrypt sums"
            )
        if any(total is None for total in self._sums):
            raise LocalProtocolError("sum-empty", "a sum cannot be opened before a party has added to it")
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
        """Remove the blinds from the key holder's plaintexts, and store the resulting sum. Raises PeerError
        if the answer does not match the request. Raises SessionFailed if the plaintexts cannot be a sum of
        the parties' vectors. It is then unknown whether the key holder or another party is at fault."""
        if party != self._keyholder or not self._request or self._opened is not None:
            raise PeerError("help-unexpected", "it sent an answer that was not requested")
        answers = packing.unpack(answer)
        if len(answers) != self.chunks:
            raise PeerError(
                "opening-parts", f"its plaintexts have {len(answers)} parts instead of {self.chunks}"
            )
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
