"""Protection `masked`: the aggregator learns the sum of a turn and nothing else of it.

Designed for: an aggregator that is curious, or lies about what it relays, together with up to `colluding`
parties; a party lost after its upload does not cost the turn. The design is Bonawitz and others' secure
aggregation (CCS 2017) with pairwise keys that are never shared and one short-lived self mask a turn; it has
not been reviewed by others yet.

A turn, with ctx = everything both ends must agree on:

    upload   each u: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx), and for
             every other v a share of b_u, sealed under k_uv
    commit   the aggregator relays the shares; each u holds them all to ctx and then gives b_u away
    recover  for a party that was lost after its upload: the others give their shares of its b
    open     the sum of y minus the self masks

Promises: a tag is sealed once; a vector that was uploaded for an attempt that did not commit can never be
opened; pairwise keys are replaced after each tree and never leave the party.
Refuses: see `MaskedSealer`; each rule has a test of its name in tests/privacy/test_masked.py.
"""

import contextlib
import hashlib
import hmac
from collections.abc import Iterator, Mapping

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError, RosterTooSmall, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields, shamir
from fedboost.privacy.cells import signed
from fedboost.privacy.pairwise import (
    KEY_BYTES,
    Group,
    PairMasks,
    Stream,
    context,
    derive,
    masked_parts,
    scratch_of,
)
from fedboost.privacy.protection import Tag
from fedboost.privacy.shamir import Draw

_NONCE = bytes(12)
"""Always the same: a key is used for one share."""


def _commitment(mask: bytes, ctx: bytes, party: str) -> bytes:
    return hashlib.sha256(fields.pack(b"fedboost/1/commitment", mask, ctx, party.encode())).digest()


_SEALED_SHARE = shamir.SHARE_BYTES + 16
"""Bytes of a share with GCM's tag."""


def _name(field: bytes) -> str:
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise PeerError("a party's name that is not text") from None


def _by_name(entries: list[bytes]) -> dict[str, bytes]:
    """Party to bytes, from fields that alternate between the two."""
    if len(entries) % 2 or len(set(entries[::2])) != len(entries) // 2:
        raise PeerError("fields that are not one for each party")
    return {_name(name): value for name, value in zip(entries[::2], entries[1::2], strict=True)}


def _self_stream(mask: bytes, ctx: bytes, party: str) -> Stream:
    return Stream(derive(mask, b"self", ctx, party.encode()))


# ---- at a party -------------------------------------------------------------------------------------

COMMIT = b"commit"
RECOVER = b"recover"


class MaskedSealer:
    """Seals one party's vectors, and helps to open the sums they went into.

    Refuses, and says so (PeerError): a roster with strangers, without this party, smaller than the threshold,
    or changed while a tree grows; a turn or attempt that is not greater than the last; an upload after this
    turn's commit; a commit of an old attempt, with a share missing or not authentic, or of a turn that
    committed another attempt; a recovery before this party's own commit, or of too many.
    """

    def __init__(self, me: str, group: Group, session: bytes, keys: dict[str, bytes], draw: Draw) -> None:
        self._me = me
        self._group = group
        self._pairs = PairMasks(me, group, session, keys)
        self._draw = draw
        self._mask: bytes | None = None
        self._note = b""
        self._shares: dict[str, bytes] | None = None
        """Other parties' shares of this turn, once they were committed to."""

    def __repr__(self) -> str:
        return f"MaskedSealer({self._me!r})"

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked parts of a vector."""
        self._check(tag)
        streams = self._pairs.streams(tag)
        mask = self._mask = self._draw(KEY_BYTES)
        self._note, self._shares = b"", None
        streams.append((_self_stream(mask, self._pairs.ctx, self._me), True))
        return (part.packed(words) for part, words in masked_parts(values, tag, streams))

    def note(self) -> bytes:
        """What goes with the last part: a commitment to the self mask, and its sealed share for each peer.

        Made once: other shares under the same key would give both away.
        """
        tag = self._pairs.tag
        assert tag is not None
        if self._note:
            return self._note
        assert self._mask is not None
        peers = [peer for peer in sorted(tag.roster) if peer != self._me]
        points = [self._group.point(party) for party in (*peers, self._me)]  # its own share is thrown away
        shares = shamir.split(int.from_bytes(self._mask), self._group.threshold, points, self._draw)
        sealed = []
        for peer, share in zip(peers, shares, strict=False):
            cipher = AESGCM(self._share_key(peer, self._me, peer))
            sealed += [peer.encode(), cipher.encrypt(_NONCE, share.to_bytes(shamir.SHARE_BYTES), None)]
        self._note = fields.pack(_commitment(self._mask, self._pairs.ctx, self._me), *sealed)
        return self._note

    def assist(self, request: bytes) -> bytes:
        """This party's self mask, or its shares of lost parties' masks."""
        try:
            kind, ctx, *rest = fields.unpack(request)
        except ValueError:
            raise PeerError("a request for help that asks nothing") from None
        if self._pairs.tag is None or not hmac.compare_digest(ctx, self._pairs.ctx):
            raise PeerError("asked to help with a turn or attempt that is not the last")
        if kind == COMMIT:
            return self._commit(_by_name(rest))
        if kind == RECOVER:
            return self._recover([_name(party) for party in rest])
        raise PeerError("asked for help of an unknown kind")

    def _check(self, tag: Tag) -> None:
        self._pairs.check(tag)
        last = self._pairs.tag
        if len(tag.roster) < self._group.smallest_roster:
            raise PeerError(
                f"a roster of {len(tag.roster)} parties, fewer than {self._group.smallest_roster}"
            )
        if last is not None and tag.turn == last.turn and self._shares is not None:
            raise PeerError(f"turn {tag.turn} was committed: no other attempt of it is sealed")
        if last is not None and tag.tree == last.tree and set(tag.roster) != set(last.roster):
            raise PeerError(f"the roster changed while tree {tag.tree} grows")

    def _share_key(self, peer: str, sender: str, receiver: str) -> bytes:
        return self._pairs.derived(peer, b"share", sender, receiver)

    def _commit(self, sealed: dict[str, bytes]) -> bytes:
        assert self._pairs.tag is not None
        assert self._mask is not None
        peers = set(self._pairs.tag.roster) - {self._me}
        if set(sealed) != peers:
            raise PeerError("asked to commit without the share of every party of the roster")
        shares = {}
        for peer in sorted(peers):
            try:
                shares[peer] = AESGCM(self._share_key(peer, peer, self._me)).decrypt(
                    _NONCE, sealed[peer], None
                )
            except InvalidTag:
                raise PeerError(
                    f"the share of party {peer} is not authentic: it sealed under another session, turn, "
                    f"roster or tree, or its share was changed on the way"
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
        return fields.pack(*answer)


# ---- at the aggregator ------------------------------------------------------------------------------


class MaskedOpener:
    """Adds masked parts into one running sum, collects the help, and opens the sum.

    It never has what it takes to open less than the whole roster: pairwise masks cancel in the whole only.
    Raises RosterTooSmall when so many parties are lost that a self mask cannot be recovered.
    """

    def __init__(self, tag: Tag, group: Group, session: bytes) -> None:
        self.parts = len(tag.parts)
        self._tag = tag
        self._group = group
        self._ctx = context(session, group, tag)
        self._sum = np.zeros(tag.cells, np.uint64)
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._masks: dict[str, bytes] = {}
        self._shares: dict[str, dict[int, int]] = {}
        self._lost: set[str] = set()
        self._missing: set[str] = set()
        """The parties whose masks the others were asked to recover."""

    def add(self, party: str, part: int, cells: bytes) -> None:
        """Add one masked part."""
        place = self._tag.part(part)
        place.add(place.of(self._sum), cells)

    def note(self, party: str, note: bytes) -> None:
        """Take in what came with a party's last part."""
        try:
            commitment, *sealed = fields.unpack(note)
        except ValueError:
            raise PeerError("its report came without a commitment") from None
        shares = _by_name(sealed)
        if set(shares) != set(self._tag.roster) - {party}:
            raise PeerError("its shares are not one for every other party of the roster")
        if len(commitment) != KEY_BYTES or any(len(share) != _SEALED_SHARE for share in shares.values()):
            raise PeerError("its commitment or its shares are of another length than those can be")
        self._commitments[party], self._sealed[party] = commitment, shares

    def requests(self) -> dict[str, bytes]:
        """Party to the help that is still wanted of it; empty when the sum can be opened."""
        present = [party for party in sorted(self._tag.roster) if party not in self._lost]
        missing = sorted(party for party in self._lost if party not in self._masks)
        if missing and len(present) < self._group.threshold:
            raise RosterTooSmall(
                f"{len(present)} of {len(self._tag.roster)} parties are left, {self._group.threshold} are "
                f"needed to open the sum without {', '.join(missing)}"
            )
        uncommitted = [party for party in present if party not in self._masks]
        if uncommitted:
            return {party: self._commit_request(party) for party in uncommitted}
        if not missing:
            return {}
        self._missing = set(missing)
        request = fields.pack(RECOVER, self._ctx, *(party.encode() for party in missing))
        return dict.fromkeys(present, request)

    def _commit_request(self, party: str) -> bytes:
        relayed = []
        for sender, shares in sorted(self._sealed.items()):
            if sender != party:
                relayed += [sender.encode(), shares[party]]
        return fields.pack(COMMIT, self._ctx, *relayed)

    def lose(self, party: str) -> None:
        """A party whose upload is in is gone: its mask will be recovered from the others."""
        self._lost.add(party)

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help; PeerError if it is not what was asked for, SessionFailed if all that was
        given does not recover a lost party's mask."""
        if party not in self._commitments:
            raise PeerError("its help came without its report")
        if party not in self._masks:
            self._take_mask(party, answer)
            return
        answered = _by_name(fields.unpack(answer))
        if not answered or set(answered) != self._missing:
            raise PeerError("its help is not what was asked for")
        for lost, share in answered.items():
            if len(share) != shamir.SHARE_BYTES:
                raise PeerError("its help is not what was asked for")
            shares = self._shares.setdefault(lost, {})
            shares[self._group.point(party)] = int.from_bytes(share)
            if len(shares) == self._group.threshold and lost not in self._masks:
                self._masks[lost] = self._recovered(lost, shares)

    def _recovered(self, lost: str, shares: Mapping[int, int]) -> bytes:
        """A lost party's mask. Who spoilt it cannot be told, so it is no fault of the last that helped."""
        with contextlib.suppress(PeerError, OverflowError):
            mask = shamir.combine(shares).to_bytes(KEY_BYTES)
            if self._is_of(lost, mask):
                return mask
        raise SessionFailed(
            f"the self mask of party {lost}, which was lost, cannot be recovered: the shares of it do not "
            f"fit its commitment, so party {lost} dealt wrong ones, or a party that helped changed its own"
        )

    def _take_mask(self, party: str, mask: bytes) -> None:
        if not self._is_of(party, mask):
            raise PeerError(f"the self mask of party {party} is not the one it committed to")
        self._masks[party] = mask

    def _is_of(self, party: str, mask: bytes) -> bool:
        """Whether it is the mask this party committed to."""
        return hmac.compare_digest(_commitment(mask, self._ctx, party), self._commitments[party])

    def open(self) -> Int64:
        """The sum, once `requests` is empty."""
        if self.requests():
            raise PeerError("the sum cannot be opened yet")
        scratch = scratch_of(self._tag)
        for party in self._tag.roster:
            stream = _self_stream(self._masks[party], self._ctx, party)
            for part in self._tag.parts:
                part.subtract(part.of(self._sum), stream.next(part.size, scratch))
        return signed(self._sum, self._tag.runs)
