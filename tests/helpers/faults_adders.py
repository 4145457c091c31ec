"""The simulator of faults with adders between some parties and the aggregator.

Besides what `faults` lets happen: an adder is killed, with all its parties' connections, or loses its
connection to the aggregator, or says whose reports it holds; a party's terms are checked. Parties come back
through any adder or none.

The adders of `play_liars` lie, a few times a seed. Under masks, every sum that is opened must be exact all
the same, and nothing goes on for ever. Under `plain`, a sum is what the adders say.
"""

import collections
from dataclasses import replace
from functools import partial

from faults import STEPS_OF_FAULTS, Outcome, World, consortium

from fedboost.errors import FedboostError, PeerError
from fedboost.protocol.adding import (
    AdderEnd,
    Cut,
    From,
    Gone,
    Held,
    Here,
    RegionEnd,
    RegionSum,
    RunningSum,
    To,
)
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
from fedboost.runtime.aggregator.adder import report_of
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


class Adder:
    """An adder, its parties, and both directions of its connection to the aggregator."""

    kind = AdderEnd

    def __init__(self, world):
        self.world = world
        self.parties = set()
        self.up = collections.deque()
        self.down = collections.deque()
        self.region = RegionEnd()
        self.end = self.kind(self.tell, self.give, self.cut, report_of)
        self.end.attach()

    def tell(self, frame):
        self.up.append(encode_from_adder(frame))

    def give(self, party, frame):
        if party in self.parties and not frame.advises:
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
    kind = Adder

    def choose(self, seed):
        chosen = self.pick(seed)
        self.through = dict.fromkeys(chosen[1], DIRECT)
        self.at_root = set()
        self.adders = {}
        return chosen

    def pick(self, seed):
        """Terms, and a place for each party to run at."""
        return super().choose(seed)

    def keys(self):
        """The names of all adders."""
        return [f"adder-{number}" for number in range(self.draw.choice([1, 1, 2, 3]))]

    def route(self, name):
        """The adder that a party calls now, or DIRECT."""
        return self.draw.choice([DIRECT, *self.adders, *self.adders])

    def said(self, name, message):
        """What leaves a party in place of a message."""
        return message

    def __init__(self, seed):
        super().__init__(seed)
        self.encoded = True
        self.adders = {key: self.kind(self) for key in self.keys()}
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
                replies = map(partial(self.said, name), self.ends[name].handle(message))
                self.up[name].extend(map(encode_from_party, replies))
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
        self.through[name] = self.route(name)
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
            self.adders[key] = self.kind(self)
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
        self.adders[key] = self.kind(self)
        for party in sorted(adder.region.numbers):
            self.lose(adder, party)

    def cut_off(self, key):
        """An adder loses its connection to the aggregator, and calls again."""
        adder = self.adders[key]
        known, adder.region = adder.region, RegionEnd()
        for party in sorted(known.numbers):
            self.lose(adder, party)
        adder.reattach()

    def check_terms(self, adder):
        """A preflight check of one party of an adder, which answers none."""
        if numbers := sorted(adder.region.names):
            frame = To((self.draw.choice(numbers),), b"", advises=True)
            adder.down.append(encode_to_adder(frame))

    def calm(self):
        self.is_calm = True
        super().calm()

    def tick(self, seconds):
        super().tick(seconds)
        for name in sorted(set(self.sites) - self.connected) if self.is_calm else ():
            self.back(name)

    def step(self):
        kinds = ["else", "kill", "cut_off", "held", "check"]
        kind = self.draw.choices(kinds, [100, 0.4, 0.4, 3, 1])[0]
        if kind == "else":
            super().step()
            return
        key = self.draw.choice(sorted(self.adders))
        if kind == "held":
            self.adders[key].end.tell_held()
            return
        if kind == "check":
            self.check_terms(self.adders[key])
            return
        self.faults[kind] += 1
        getattr(self, kind)(key)


# ---- adders that lie ------------------------------------------------------------------------------------


LIES = (
    "leaves a report out",
    "adds a report twice",
    "passes on a report that it also adds",
    "sends a sum twice",
    "sends an earlier sum",
    "changes the context",
    "changes the sizes",
    "changes their number",
    "drops a frame",
    "swaps two frames",
    "drops a message to a party",
)


class LyingSum(RunningSum):
    """A sum that may lack a report, or have one twice."""

    lies = None

    def add(self, number, report, size):
        if self.lies("leaves a report out"):
            chunk = self._chunks[report.part]
            nothing = bytes(chunk.size)
            return super().add(number, replace(report, cells=nothing), size)
        if self.lies("adds a report twice"):
            summed = super().add(number, report, size)
            if summed is None:  # else it has left
                self._next[number] -= 1
                self._left[report.part] += 1
                return super().add(number, report, size)
            return summed
        return super().add(number, report, size)


class LyingEnd(AdderEnd):
    lies = None

    def receive(self, frame):
        super().receive(frame)
        if isinstance(frame, To) and frame.adds is not None and self._sum is not None:
            self._sum.__class__ = LyingSum
            self._sum.lies = self.lies

    def message(self, party, data, advises=False):
        number, total = self._numbers[party], self._sum
        super().message(party, data, advises)
        is_added = total is not None and number in total and report_of(data)
        if is_added and self.lies("passes on a report that it also adds"):
            self._up(From(number, data))


class Liar(Adder):
    kind = LyingEnd

    def __init__(self, world):
        self.kept = []
        super().__init__(world)
        self.end.lies = world.lies

    def tell(self, frame):
        lies, draw = self.world.lies, self.world.draw
        if isinstance(frame, RegionSum):
            self.kept.append(frame)
            frame = self.twisted(frame)
            if lies("sends a sum twice"):
                super().tell(frame)
        if lies("drops a frame"):
            return
        super().tell(frame)
        if len(self.up) > 1 and lies("swaps two frames"):
            place = draw.randrange(len(self.up) - 1)
            self.up[place], self.up[-1] = self.up[-1], self.up[place]

    def twisted(self, frame):
        lies, draw = self.world.lies, self.world.draw
        # An adder of all parties knows their sums, whose masks have cancelled: nobody notices another one.
        knows_all = len(self.end._sum._next) == len(self.world.terms.parties)
        if not knows_all and lies("sends an earlier sum"):
            fits = [old.cells for old in self.kept if len(old.cells) == len(frame.cells)]
            return replace(frame, cells=draw.choice(fits[:-1] or fits))
        if lies("changes the context"):
            return replace(frame, ctx=draw.choice([b"", draw.randbytes(32)]))
        if lies("changes the sizes"):
            return replace(frame, sizes=tuple(draw.randrange(1 << 32) for _ in frame.sizes))
        if lies("changes their number"):
            return replace(frame, sizes=(*frame.sizes, 1, 2))
        return frame

    def give(self, party, frame):
        if not self.world.lies("drops a message to a party"):
            super().give(party, frame)


class LyingWorld(AddersWorld):
    """As `AddersWorld`, with adders that lie until they have told all lies of the seed."""

    kind = Liar

    def __init__(self, seed):
        self.left = 0
        self.told = collections.Counter()
        super().__init__(seed)
        self.left = self.draw.randrange(1, 7)
        self.chosen = self.draw.sample(LIES, self.draw.choice([1, 2, len(LIES)]))
        self.rate = self.draw.choice([0.02, 0.2])

    def lies(self, how):
        """Whether an adder lies now, in this way."""
        if not self.left or how not in self.chosen or self.draw.random() > self.rate:
            return False
        self.left -= 1
        self.told[how] += 1
        return True

    def check(self, session):
        if self.terms.hiding.protection != "plain":
            super().check(session)

    def deliver_frame(self, adder, line):
        """As the server has it: an adder that breaks the protocol is cut off, and calls again."""
        up = line is adder.up
        try:
            super().deliver_frame(adder, line)
        except PeerError:
            assert up, f"seed {self.seed}: the aggregator broke the protocol"
            self.told["was cut off"] += 1
            self.cut_off(next(key for key, one in self.adders.items() if one is adder))

    def tick(self, seconds):
        """When nothing moves any more, adders are started again: a party may not have been announced."""
        super().tick(seconds)
        if self.is_calm and not self.lines() and not self.over():
            self.left = 0
            for key in sorted(self.adders):
                self.kill(key)


def play_liars(seed):
    """One seed of adders that lie, to its end."""
    world = LyingWorld(seed)
    plain = world.terms.hiding.protection == "plain"
    try:
        for _ in range(world.draw.choice([0, 100, 200])):
            if lines := world.lines():
                world.deliver(*world.draw.choice(lines))
        for _ in range(world.draw.randrange(20, STEPS_OF_FAULTS)):
            if world.over():
                break
            world.step()
        world.calm()
    except (FedboostError, ArithmeticError, LookupError, ValueError):
        if not plain:
            raise
        world.session.fail("a program that met impossible sums")  # as the server has it
    session = world.session
    assert session.phase in ("done", "failed")
    assert (session.error is None) == (session.phase == "done"), f"seed {seed}: failed without a word"
    rosters = tuple(dict.fromkeys(world.rosters.values()))
    model = session.booster.to_xgboost() if session.phase == "done" else None
    whole = all(set(roster) == set(world.terms.parties) for roster in rosters)
    if model and whole and not plain:
        assert model == world.due_model, f"seed {seed}: another model"
    error = None if session.error is None else str(session.error)
    return Outcome(seed, world.terms, error, model, rosters, world.faults + world.told)


# ---- what a test says, and nothing else -----------------------------------------------------------------


class Scripted(AddersWorld):
    """A session in which only happens what a test does. routes: party -> "adder-0", "adder-1" or DIRECT; all
    lines move in turn, but for those that `stopped` names."""

    def __init__(self, routes, protection="plain", on_loss="wait"):
        self.routes = routes
        self.settings = protection, on_loss
        self.stopped = set()
        super().__init__(0)

    def pick(self, seed):
        return consortium(len(self.routes), *self.settings, 0, "binary:logistic", False, None)

    def keys(self):
        return sorted({*self.routes.values()} - {DIRECT})

    def route(self, name):
        return self.routes[name]

    def lines(self):
        stopped = [self.up[name] for name in self.stopped]
        return [(key, line) for key, line in super().lines() if not any(line is one for one in stopped)]

    def move(self, until=lambda: False):
        """Deliver what there is to deliver."""
        while not until() and not self.over() and (lines := self.lines()):
            for key, line in lines:
                if line and not until():
                    self.deliver(key, line)

    def back_at_once(self, name):
        """A party calls its adder again before the aggregator knows that it was gone."""
        self.connected.add(name)
        self.adders[self.routes[name]].parties.add(name)
        self.adders[self.routes[name]].end.here(name, "")

    def asked(self, turn):
        """Go on until all parties have answered this turn's question, and no answer has left."""
        self.move(lambda: self.session.turn == turn)
        self.stopped = {*self.sites}
        self.move()

    def answer(self, name, parts=None):
        """Deliver the next parts of a party's answer (default: all), and what follows from them."""
        line = self.up[name]
        for _ in range(len(line) if parts is None else parts):
            self.deliver(name, line)
            self.move()

    def finish(self):
        """Go on to the end, with everybody back; the error, or the model."""
        self.stopped = set()
        for _ in range(50):
            self.move()
            if self.over():
                break
            for name in sorted(set(self.sites) - self.connected):
                self.back(name)
            self.tick(10.0)
        session = self.session
        return str(session.error) if session.error else session.booster.to_xgboost()
