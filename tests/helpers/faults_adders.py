"""The simulator of faults with adders between some parties and the aggregator.

Besides what `faults` lets happen: an adder is killed, with all its parties' connections, or loses its
connection to the aggregator, or says whose reports it holds. Parties come back through any adder or none. A
seed's adders may lie: they leave a party's report out of a sum, add one twice, or send an earlier sum again.
"""

import collections

from faults import World

from fedboost.protocol.adding import AdderEnd, Cut, From, Gone, Held, Here, RegionEnd, RegionSum
from fedboost.protocol.messages import (
    Ask,
    Connected,
    Disconnected,
    Join,
    Leave,
    Offer,
    Relay,
    Report,
    Summed,
)
from fedboost.protocol.party import PartySession
from fedboost.wire.messages import (
    decode_from_adder,
    decode_from_party,
    decode_to_adder,
    decode_to_party,
    encode_from_adder,
    encode_from_party,
    encode_to_adder,
    encode_to_party,
)

DIRECT = ""
CLOSED = "its connection closed"


def report_of(data):
    message = decode_from_party(data)
    return message if isinstance(message, Report) else None


class Adder:
    """An adder, its parties, and both directions of its connection to the aggregator."""

    def __init__(self, world):
        self.world = world
        self.parties = set()
        self.up = collections.deque()
        self.down = collections.deque()
        self.region = RegionEnd()
        self.end = AdderEnd(self.tell, self.give, self.cut, report_of)
        self.end.attach()

    def tell(self, frame):
        self.up.append(encode_from_adder(frame))

    def give(self, party, frame):
        if party in self.parties:
            self.world.down[party].append(frame.data)

    def cut(self, party, frame):
        self.world.drop(party)

    def reattach(self):
        """A new connection to the aggregator; whatever was on its way is lost."""
        self.up.clear()
        self.down.clear()
        self.region = RegionEnd()
        self.end.attach()


class AddersWorld(World):
    """As `World`, with one to three adders."""

    is_calm = False

    def choose(self, seed):
        chosen = super().choose(seed)
        self.through = dict.fromkeys(chosen[1], DIRECT)
        self.at_root = set()
        self.adders = {}
        return chosen

    def __init__(self, seed):
        super().__init__(seed)
        self.encoded = True
        self.adders = {f"adder-{number}": Adder(self) for number in range(self.draw.choice([1, 1, 2, 3]))}
        for name in sorted(self.sites):
            self.drop(name)
            self.back(name)

    def aggregator(self):
        """At first, and after a crash: those who call it directly are there, adders call again."""
        connected, self.connected = self.connected, {n for n in self.connected if self.through[n] == DIRECT}
        self.at_root, self.joined = set(self.connected), set()
        try:
            return super().aggregator()
        finally:
            self.connected = connected

    def send(self, outbox):
        together = {}
        for name, message in outbox:
            if name not in self.at_root:
                continue
            data = encode_to_party(message) if self.adders or self.encoded else message
            if self.through_now(name) is None:
                self.down[name].append(data)
                continue
            adder = self.through_now(name)
            together.setdefault((id(adder), id(message)), (adder, message, data, []))[3].append(name)
        for adder, message, data, names in together.values():
            adds = self.session.addition if isinstance(message, Ask) else None
            frame = adder.region.to(tuple(names), data, isinstance(message, Relay), adds)
            adder.down.append(encode_to_adder(frame))

    def through_now(self, name):
        """The adder through which the aggregator knows a party, or None."""
        return next((adder for adder in self.adders.values() if name in adder.region.numbers), None)

    # ---- lines ----------------------------------------------------------------------------------------

    def lines(self):
        ends = [(key, line) for key, adder in self.adders.items() for line in (adder.down, adder.up) if line]
        return [*super().lines(), *ends]

    def spoilt(self):
        return super().lines()

    def hear(self, name, message):
        """A party's message reaches the aggregator, which ignores what is left of an earlier session."""
        if isinstance(message, Join) and message.session == self.session.name:
            self.joined.add(name)
        elif (not isinstance(message, Leave | Join) and name not in self.joined) or isinstance(message, Join):
            return
        self.send(self.session.handle(name, message))

    def deliver(self, name, line):
        if name in self.adders:
            self.deliver_frame(self.adders[name], line)
        elif line is self.down[name]:
            message = decode_to_party(line.popleft())
            if isinstance(message, Offer) and message.session != self.heard[name]:
                self.heard[name], self.ends[name] = message.session, PartySession(self.sites[name])
            if self.ends[name].ended is None:
                self.up[name].extend(map(encode_from_party, self.ends[name].handle(message)))
        elif self.through[name] == DIRECT:
            self.hear(name, decode_from_party(line.popleft()))
        else:
            self.adders[self.through[name]].end.message(name, line.popleft())

    def deliver_frame(self, adder, line):
        if line is adder.down:
            adder.end.receive(decode_to_adder(line.popleft()))
            return
        frame, region = decode_from_adder(line.popleft()), adder.region
        match frame:
            case Here(_, party) if party in self.at_root:
                adder.down.append(encode_to_adder(Cut(frame.number, True, "party-name-taken", "taken")))
            case Here(_, party):
                region.here(frame)
                self.at_root.add(party)
                self.send(self.session.handle(party, Connected()))
            case Gone(number) if number in region.names:
                self.lose(adder, region.names[number])
            case From(number, data) if number in region.names:
                self.hear(region.names[number], decode_from_party(data))
            case Held(turn, attempt, numbers):
                self.session.hold(turn, attempt, [region.names[n] for n in numbers if n in region.names])
            case RegionSum(turn, attempt, part, cells, ctx):
                if (sizes := region.summed(frame)) and self.joined.issuperset(sizes):
                    report = Report(turn, attempt, part, cells, ctx=ctx)
                    self.send(self.session.handle_sum(Summed(tuple(sizes), report)))

    def lose(self, adder, party):
        """The aggregator notices that a party of an adder is gone."""
        adder.region.forget(party)
        self.at_root.discard(party)
        self.joined.discard(party)
        self.send(self.session.handle(party, Disconnected(CLOSED)))

    # ---- what can happen ------------------------------------------------------------------------------

    def drop(self, name):
        if self.through[name] == DIRECT:
            self.at_root.discard(name)
            self.joined.discard(name)
            super().drop(name)
            return
        if name not in self.connected:
            return
        self.connected.discard(name)
        self.up[name].clear()
        self.down[name].clear()
        self.ends[name].hang_up()
        adder = self.adders[self.through[name]]
        adder.parties.discard(name)
        adder.end.gone(name, CLOSED)

    def back(self, name):
        if self.through_now(name) is not None or name in self.at_root:
            return  # the aggregator has not noticed the loss: it would be refused
        self.connected.add(name)
        if self.ends[name].ended is not None:
            self.ends[name] = PartySession(self.sites[name])
        self.through[name] = self.draw.choice([DIRECT, *self.adders, *self.adders])
        if self.through[name] == DIRECT:
            self.at_root.add(name)
            self.send(self.session.handle(name, Connected()))
            return
        adder = self.adders[self.through[name]]
        adder.parties.add(name)
        adder.end.here(name, "")

    def crash(self):
        for name in self.sites:
            if self.through[name] == DIRECT:
                self.up[name].clear()
                self.down[name].clear()
                self.ends[name].hang_up()
        for adder in self.adders.values():
            adder.reattach()
        self.aggregator()

    def blackout(self):
        """All processes die; the adders' parties come back later."""
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        for key, adder in self.adders.items():
            self.forget_parties(adder)
            self.adders[key] = Adder(self)
        for name in self.sites:
            self.up[name].clear()
            self.down[name].clear()
        self.aggregator()

    def forget_parties(self, adder):
        for name in sorted(adder.parties):
            self.connected.discard(name)
            self.up[name].clear()
            self.down[name].clear()
            self.ends[name].hang_up()
        adder.parties.clear()

    def leave(self, name):
        if self.through[name] == DIRECT:
            super().leave(name)
            return
        self.up[name].clear()
        self.ends[name].ended = "it has had enough"
        leaving = Leave("it has had enough", self.name)
        self.adders[self.through[name]].end.message(name, encode_from_party(leaving))

    def kill(self, key):
        """kill -9 of an adder, started again."""
        adder = self.adders[key]
        self.forget_parties(adder)
        self.adders[key] = Adder(self)
        for party in sorted(adder.region.numbers):
            self.lose(adder, party)

    def cut_off(self, key):
        """An adder loses its connection to the aggregator, and calls again."""
        adder = self.adders[key]
        known, adder.region = adder.region, RegionEnd()
        for party in sorted(known.numbers):
            self.lose(adder, party)
        adder.reattach()

    def calm(self):
        self.is_calm = True
        super().calm()

    def tick(self, seconds):
        super().tick(seconds)
        for name in sorted(set(self.sites) - self.connected) if self.is_calm else ():
            self.back(name)

    def step(self):
        kind = self.draw.choices(["else", "kill", "cut_off", "held"], [100, 0.4, 0.4, 3])[0]
        if kind == "else":
            super().step()
            return
        key = self.draw.choice(sorted(self.adders))
        if kind == "held":
            self.adders[key].end.tell_held()
            return
        self.faults[kind] += 1
        getattr(self, kind)(key)
