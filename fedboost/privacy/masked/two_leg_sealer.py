"""The party's end of masked sums in two legs: where the roster may shrink."""

import hmac
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields, shamir
from fedboost.privacy.masked.pairwise import KEY_BYTES, TWO_LEGS, Group, PairMasks, masked_chunks
from fedboost.privacy.masked.shares import COMMIT, NONCE, RECOVER, by_name, commitment, name_of, self_stream
from fedboost.privacy.protection import Tag
from fedboost.privacy.shamir import RandomBytes


class TwoLegSealer:
    """Seals one party's vectors, and helps to open the sums they went into.

    Refuses, and says so (PeerError): a roster with strangers, without this party, smaller than the threshold,
    or another one than before; a turn or attempt that is not greater than the last; an upload after this
    turn's commit; a commit of an old attempt, with a share missing or not authentic, or of a turn that
    committed another attempt; a recovery before this party's own commit, or of too many.
    """

    def __init__(
        self, me: str, group: Group, session: bytes, keys: dict[str, bytes], draw: RandomBytes
    ) -> None:
        self._me = me
        self._group = group
        self._pairs = PairMasks(me, group, session, keys, TWO_LEGS)
        self._draw = draw
        self._mask: bytes | None = None
        self._note = b""
        self._shares: dict[str, bytes] | None = None
        """Other parties' shares of this turn, once this party committed to them."""
        self._share_keys: dict[tuple[str, str], bytes] = {}
        """Sender and receiver to the key of a share of this turn."""

    def __repr__(self) -> str:
        return f"TwoLegSealer({self._me!r})"

    @property
    def ctx(self) -> bytes:
        """The context of the last vector."""
        return self._pairs.ctx

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The masked chunks of a vector."""
        self._check(tag)
        self._pairs.begin(tag)
        peers = set(tag.roster) - {self._me}
        ways = [way for peer in peers for way in ((self._me, peer), (peer, self._me))]
        self._share_keys = {way: self._share_key(*way) for way in ways}
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
        shares = shamir.split(int.from_bytes(self._mask), self._group.threshold, points, self._draw)
        sealed = []
        for peer, share in zip(peers, shares, strict=False):
            cipher = AESGCM(self._share_keys[self._me, peer])
            sealed += [peer.encode(), cipher.encrypt(NONCE, share.to_bytes(shamir.SHARE_BYTES), None)]
        self._note = fields.pack(commitment(self._mask, self._pairs.ctx, self._me), *sealed)
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

    def _share_key(self, sender: str, receiver: str) -> bytes:
        peer = receiver if sender == self._me else sender
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
        return fields.pack(*answer)
