"""Sessions of parties that hold different columns, message by message; a test may change what is said."""

import os
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime

from fedboost.boosting.programs import boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.holders.columns import holder_for
from fedboost.privacy.identity import in_memory
from fedboost.protocol import relaying
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Credentials, Trust
from fedboost.protocol.messages import PHASES, Ask, Connected, Disconnected, Leave, Relay, Report
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.wire.messages import decode_from_party, decode_to_party, encode_from_party, encode_to_party
from tests.helpers.columns_apart import LAYOUTS, pooled, terms_of

SMALL = {"rounds": 2, "max_depth": 2, "max_bin": 8, "min_child_weight": 0, "on_loss": "stop"}
ROWS = 60
LOST = [Disconnected("its connection closed"), Connected()]
MAX_MESSAGES = 20_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Apart:
    """A session. `up(party, message)` returns what arrives in the place of a party's message, a list of
    messages or events; `down(party, message)` the messages that a party is told in the place of one, or
    events that arrive of it; each may return None for the message itself. tables: of the parties, cut out of
    `table` unless given; program: of the aggregator; memories: of sites, by name; terms: in the place of
    those of the settings; models: with which parties predict, by name."""

    def __init__(
        self,
        layout="three holders",
        table=None,
        tables=None,
        up=None,
        down=None,
        program=boosting.train,
        memories=None,
        terms=None,
        models=None,
        **settings,
    ):
        self.layout = LAYOUTS[layout]
        table = pooled(ROWS) if table is None else table
        self.tables = tables = self.layout.tables(table) if tables is None else tables
        settings = {"model": "whole", **SMALL, **settings}
        self.terms = terms_of(self.layout, **settings).with_parties(list(tables)) if terms is None else terms
        self.made = {name: [] for name in self.terms.parties}
        """The holders that each party has made, one in each process."""
        signers, self.roots = in_memory(self.terms.parties, NOW)
        self.sites = {
            name: Site(
                name,
                self.keeping(name, models),
                os.urandom,
                Credentials(signers[name], self.roots, (), lambda: NOW),
                **({"memory": memories[name]} if name in (memories or {}) else {}),
                keep=lambda part: self.parts.append(part),
            )
            for name in self.terms.parties
        }
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        trust = Trust(self.roots, (), lambda: NOW)
        self.session = AggregatorSession(
            "s", self.terms, program, INITIAL_STATE, trust=trust, draw=os.urandom
        )
        self.up, self.down = up, down
        self.sent, self.told, self.queries, self.parts = [], [], [], []
        self.now = 0.0

    def keeping(self, name, models):
        """What makes the holder of a party; each is kept."""

        def read(terms):
            return to_shard(as_table(self.tables[name]), terms, name)

        make = holder_for(read, name, model_of=None if models is None else lambda terms: models[name])

        def hold(terms, secret):
            self.made[name].append(make(terms, secret))
            return self.made[name][-1]

        return hold

    @property
    def error(self):
        return str(self.session.error or "")

    def crash(self, party, **site):
        """The process of a party dies; another one begins, with what the site remembers. site: what is other
        of it then."""
        self.sites[party] = replace(self.sites[party], **site)
        self.ends[party] = PartySession(self.sites[party])

    def dies_at(self, party, number):
        """Play it; a party dies when it is told its number-th message. The session itself, or None if the
        party is told fewer."""
        told = []

        def crash(name, message):
            told.extend([message] * (name == party and len(told) < number))
            if name == party and len(told) == number:
                told.append(None)
                self.crash(party)
                return LOST
            return None

        self.down = crash
        self.play()
        return self if None in told else None

    def dying(self, party, turn, remembers=dict):
        """The process of a party dies when it has answered this turn; remembers: the fields of its site
        then. The session itself."""

        def up(name, message):
            if (name, type(message)) != (party, Report) or (message.turn, message.attempt) != (turn, 1):
                return None
            self.crash(party, **remembers())
            return LOST

        self.up = up
        return self

    def asking(self, party, turn, change, attempt=1):
        """A party is asked `change(query)` in a turn. The session itself."""

        def down(name, message):
            if (name, type(message)) != (party, Ask) or (message.turn, message.attempt) != (turn, attempt):
                return None
            return [replace(message, query=change(message.query))]

        self.down = down
        return self

    def play(self, silences=3):
        """To the end, or until so many times nobody had anything to say."""
        self.waiting = deque(self.session.start())
        while self.session.phase in PHASES or self.waiting:
            if not self.waiting:
                silences -= 1
                if silences < 0:
                    return self
                self.now += 301.0
                self.waiting.extend(self.session.tick(self.now))
                continue
            party, message = self.waiting.popleft()
            if isinstance(message, Ask) and party == self.terms.parties[0]:
                self.queries.append(self.session.run.pending)
            changed = self.down and self.down(party, message)
            for told in [message] if changed is None else changed:
                (self.arrive if isinstance(told, Connected | Disconnected) else self.tell)(party, told)
        return self

    def tell(self, party, message):
        """A party hears this; what it says arrives."""
        message = decode_to_party(encode_to_party(message))
        self.told.append((party, message))
        assert len(self.told) < MAX_MESSAGES, "a session without end"
        for reply in self.ends[party].handle(message):
            said = decode_from_party(encode_from_party(reply))
            changed = self.up and self.up(party, said)
            for event in [said] if changed is None else changed:
                self.arrive(party, event)

    def arrive(self, party, event):
        """The aggregator hears this."""
        if isinstance(event, Disconnected):
            self.ends[party].hang_up()
            self.waiting = deque(waits for waits in self.waiting if waits[0] != party)
        else:
            self.sent.append((party, event))
        self.waiting.extend(self.session.handle(party, event))

    def said(self, kind, party=None):
        """Messages of this kind, of one party or all."""
        return [m for name, m in self.sent if isinstance(m, kind) and party in (None, name)]

    def heard(self, kind, party):
        """Messages of this kind that a party was told."""
        return [m for name, m in self.told if isinstance(m, kind) and name == party]

    def left(self, party):
        """The reason that a party left with; None if it did not."""
        return next((m.reason for m in self.said(Leave, party)), None)


def one_line(text):
    """A reason that somebody reads."""
    assert text.isprintable()
    assert "Traceback" not in text
    assert len(text) < 400
    return text


def refused(apart):
    """The reason for which a session ends without a model; it and those of the parties are one line each."""
    if not apart.told:
        apart.play()
    assert apart.session.phase == "failed"
    assert apart.session.booster is None
    for reason in map(apart.left, apart.terms.parties):
        assert reason is None or one_line(reason)
    return one_line(apart.error)


def sealing(patch, change):
    """Parties seal `change(party, send, ask)` where that is no None, in the place of what they relay."""
    seal = relaying.Ends.seal

    def sealed(ends, send, ask, number):
        content = change(ends.me, send, ask)
        return seal(ends, send if content is None else replace(send, content=content), ask, number)

    patch.setattr(relaying.Ends, "seal", sealed)


def opening(patch):
    """A list of all that parties open: who, what it waited for, the content."""
    opened, opens = [], relaying.Ends.open

    def kept(ends, sealed, receive, ask, number):
        content = opens(ends, sealed, receive, ask, number)
        opened.append((ends.me, receive, content))
        return content

    patch.setattr(relaying.Ends, "open", kept)
    return opened


def once(find, does):
    """A hook that does something to the first message that `find(party, message)` is true of."""
    done = []

    def hook(party, message):
        if done or not find(party, message):
            return None
        done.append(message)
        return does(message)

    hook.done = done
    return hook


def relay_of(sender, number=1, turn=None):
    """True for a part of a relay of a party, as it sends it."""
    return lambda party, message: (
        isinstance(message, Relay)
        and (party, message.number) == (sender, number)
        and turn in (None, message.turn)
    )


def changed(relay, **fields):
    return [replace(relay, **fields)]
