"""A small training in which some messages arrive damaged; both ends do what the shell does with such bytes.

Nobody waits for ever here: when nothing is left to deliver, the parties that are still awaited are reported
lost, one after the other, as the network's timeouts would.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from captured import table, terms_of

from fedboost.boosting.programs import boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import PeerError
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Shard
from fedboost.privacy.identity import in_memory
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Disconnected, Leave, Report, SessionEnded
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.terms.terms import Terms
from fedboost.wire.messages import decode_from_party, decode_to_party, encode_from_party, encode_to_party

Damage = Callable[[str, int, bytes], bytes]
"""What arrives in place of a message: its way, "up" or "down", its number on that way, its bytes."""
MAX_MESSAGES = 10_000


@dataclass
class Training:
    """What a training came to. `lied`: some party's cells arrived as others of the same length, which no
    protection tells from the words of a party that lies."""

    aggregator: AggregatorSession
    parties: dict[str, PartySession]
    lied: bool = False
    delivered: dict[str, list[tuple[str, bytes]]] = field(default_factory=lambda: {"up": [], "down": []})
    """What was sent each way, in the order in which it arrived: party and bytes."""

    @property
    def model(self) -> str | None:
        booster = self.aggregator.booster
        return booster.to_xgboost() if booster and not self.aggregator.error else None


@cache
def sites(name: str) -> dict[str, Site]:
    """A place for each party of one of the trainings of `captured`."""
    terms = terms_of(name)
    credentials: dict[str, Credentials] = {}
    if terms.hiding.protection != "plain" or terms.blocks:
        now = datetime.now(UTC)
        signers, roots = in_memory(terms.parties, now)
        credentials = {
            party: Credentials(signer, roots, (), lambda: now) for party, signer in signers.items()
        }
    return {
        party: Site(party, holder_for(reader(i, party), party), os.urandom, credentials.get(party))
        for i, party in enumerate(terms.parties)
    }


def reader(number: int, party: str) -> Callable[[Terms], Shard]:
    """As a party's node reads its table."""
    return cache(lambda terms: to_shard(as_table(table(number)), terms, party))


def undamaged(way: str, number: int, data: bytes) -> bytes:
    """Everything arrives as it was sent."""
    return data


def train(name: str, damage: Damage = undamaged, at: Mapping[str, Site] | None = None) -> Training:
    """One of the trainings of `captured`; `at` other sites than `sites` has."""
    terms = terms_of(name)
    aggregator = AggregatorSession("fuzz", terms, boosting.train, INITIAL_STATE, draw=os.urandom)
    places = {party: replace(site, memory=None) for party, site in (at or sites(name)).items()}  # each anew
    parties = {party: PartySession(site) for party, site in places.items()}
    training = Training(aggregator, parties)
    down: deque[tuple[str, bytes]] = deque()
    up: deque[tuple[str, bytes]] = deque()

    def send(outbox) -> None:
        down.extend((party, encode_to_party(message)) for party, message in outbox)

    def arriving(way: str, queue) -> tuple[str, bytes, bytes]:
        party, data = queue.popleft()
        number = len(training.delivered[way])
        training.delivered[way].append((party, data))
        assert number < MAX_MESSAGES, "a training without end"
        return party, data, damage(way, number, data)

    silence = 0
    send(aggregator.start())
    while down or up or aggregator.awaited:
        if down:
            party, _, data = arriving("down", down)
            try:
                message = decode_to_party(data)
            except PeerError as error:
                up.append((party, encode_from_party(Leave(error.public))))
                message = SessionEnded(str(error))
            up.extend((party, encode_from_party(reply)) for reply in heard(parties[party], message))
        elif up:
            party, sent, data = arriving("up", up)
            try:
                message = decode_from_party(data)
            except PeerError as error:
                message = Disconnected(str(error))
            real = decode_from_party(sent)
            if isinstance(message, Report) and isinstance(real, Report) and message.cells != real.cells:
                training.lied = True
            send(aggregator.handle(party, message))
        else:
            silence += 1
            assert silence < 10, "who is silent is still awaited"
            send(aggregator.handle(aggregator.awaited[0], Disconnected("silence")))
            send(aggregator.tick(1000.0 * silence))
    return training


def heard(session: PartySession, message) -> list:
    """The replies of a party; one that it ends with of its own accord is a Leave."""
    lived = session.ended is None
    replies = list(session.handle(message))
    if lived and session.ended is not None and not isinstance(message, SessionEnded):
        assert isinstance(replies[-1], Leave)
        assert replies[-1].reason
        assert replies[-1].reason.isprintable()
        assert session.ended.isprintable()
    if not lived:
        assert replies == []
    return replies
