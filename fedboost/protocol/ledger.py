"""The noise of a session at one party, and what it is charged as.

Promises: `Spending.release` charges the site's memory before it adds the noise of a release, and adds the
same noise for what is said again: the same question to the same roster where the session stands at the same
place, answered with the same integers. For anything else it is independent, and charged again; so no two
answers differ by less than noise, and whether two have the same noise says nothing of rows.
Refuses: what does not fit what is left (Refused, by the memory).
"""

import hmac
from dataclasses import dataclass

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.privacy.masked.keys import RandomBytes
from fedboost.privacy.noise import noise_of
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import Query, TrainingState
from fedboost.protocol.site_memory import KEY_BYTES, SessionMemory
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Charge:
    """The charge of one answer: a name, the same for the same answer, and a cost."""

    name: str
    cost: float


@dataclass(frozen=True)
class Spending:
    """The noise of one session at one party."""

    terms: Terms
    memory: SessionMemory

    def release(
        self, query: Query, state: TrainingState, tag: Tag, values: Int64
    ) -> tuple[Int64, Charge | None]:
        """An answer with this party's share of the noise, and what it was charged as. The answer is as it
        was, and nothing is charged, if nothing of rows is in it, or if the aggregator draws the noise: it
        gets exact sums, which no charge can stand for.

        state: where the session stood when it was asked; sums over the same nodes after other trees are
        another question.
        """
        release = query.release(self.terms)
        if release is None:
            if values.size:
                raise PeerError("an answer without noise, where the terms say that all get some")
            return values, None
        if not self._draws:
            return values, None
        key = self._key(query, state, tag, values)
        charge = Charge(hmac.digest(key, b"name", "sha256").hex()[:32], release.cost)
        self.memory.charge(charge.name, charge.cost)
        noise = noise_of(hmac.digest(key, b"noise", "sha256"), release.share, values.size)
        return values + noise, charge

    def _key(self, query: Query, state: TrainingState, tag: Tag, values: Int64) -> bytes:
        """A secret of this very answer."""
        label = fields.pack(
            self.terms.digest.encode(),
            query.digest,
            state.position.digest,
            fields.pack(*(party.encode() for party in sorted(tag.roster))),
            values.tobytes(),
        )
        return hmac.digest(self.memory.secret, label, "sha256")

    @property
    def _draws(self) -> bool:
        """True if this party draws noise."""
        return self.terms.noise is not None and self.terms.noise.placement != "central"


def with_central_noise(query: Query, terms: Terms, total: Int64, draw: RandomBytes) -> Int64:
    """An opened sum with the noise that the aggregator draws, if it is the one to draw it."""
    if terms.noise is None or terms.noise.placement != "central":
        return total
    release = query.release(terms)
    return total if release is None else total + noise_of(draw(KEY_BYTES), release.share, total.size)
