"""Protection `masked` where the roster may shrink, in two legs: the aggregator learns the sum of a turn and
nothing else of it.

Designed for: an aggregator that is curious, or lies about the messages it relays, together with up to
`colluding` parties; a party lost after its upload does not cost the turn. The design is Bonawitz and others'
secure aggregation (CCS 2017) with pairwise keys that are never shared and one short-lived self mask a turn;
it has not been reviewed by others yet.

A turn, with ctx = everything both ends must agree on:

    upload   each u: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(k_uv, ctx) - sum_{v < u} PRG(k_uv, ctx), and for
             every other v a share of b_u, sealed under k_uv
    commit   the aggregator relays the shares; each u holds them all to ctx and then gives b_u away
    recover  for a party that was lost after its upload: the others give their shares of its b
    open     the sum of y minus the self masks

Promises: a tag is sealed once; a vector that was uploaded for an attempt that did not commit can never be
opened; pairwise keys are replaced after each vector and never leave the party.
Refuses: see `TwoLegSealer`; each rule has a test of its name in tests/privacy/masked.
"""

import contextlib
import hmac
from collections.abc import Mapping

from fedboost.errors import PeerError, RosterTooSmall, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields, shamir
from fedboost.privacy.masked import check_cells
from fedboost.privacy.masked.pairwise import KEY_BYTES, TWO_LEGS, Group, context, scratch_of
from fedboost.privacy.masked.shares import COMMIT, RECOVER, SEALED_SHARE, by_name, commitment, self_stream
from fedboost.privacy.protection import Tag


class TwoLegOpener:
    """Adds masked chunks into one running sum, collects the help, and opens the sum.

    It can never open the sum of less than the whole roster: pairwise masks cancel in the whole only.
    Raises RosterTooSmall when too few parties are left to recover a self mask.
    """

    def __init__(self, tag: Tag, group: Group, session: bytes) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._group = group
        self.ctx = context(TWO_LEGS, session, group, tag)
        self._sum = check_cells.zeros(tag)
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._masks: dict[str, bytes] = {}
        self._shares: dict[str, dict[int, int]] = {}
        self._lost: set[str] = set()
        self._missing: set[str] = set()
        """The parties whose masks the others were asked to recover."""

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one masked chunk."""
        check_cells.add(self._sum, self._tag, number, cells)

    def note(self, party: str, note: bytes) -> None:
        """Take in a party's commitment to its self mask, and its shares of that."""
        try:
            commitment, *sealed = fields.unpack(note)
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
            return {party: self._commit_request(party) for party in uncommitted}
        if not missing:
            return {}
        self._missing = set(missing)
        request = fields.pack(RECOVER, self.ctx, *(party.encode() for party in missing))
        return dict.fromkeys(present, request)

    def _commit_request(self, party: str) -> bytes:
        relayed = []
        for sender, shares in sorted(self._sealed.items()):
            if sender != party:
                relayed += [sender.encode(), shares[party]]
        return fields.pack(COMMIT, self.ctx, *relayed)

    def lose(self, party: str) -> None:
        """Note that a party whose upload is in is disconnected: its mask is recovered from the others."""
        self._lost.add(party)

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help; PeerError if it does not answer the request, SessionFailed if the shares do
        not recover a lost party's mask."""
        if party not in self._commitments:
            raise PeerError("its help came without its report")
        if party not in self._masks:
            self._take_mask(party, answer)
            return
        answered = by_name(fields.unpack(answer))
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
        """A lost party's mask. Who spoilt it is unknown, so the party that helped last is not to blame."""
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
        return check_cells.checked_sum(self._sum, self._tag)
