"""Two ends of a scoring link in one process: parts of a model, tables, and what each end sends the other."""

from datetime import UTC, datetime
from os import urandom

from predictions import FEWEST, MODEL, models_of, tables_of, terms_for

from fedboost.errors import Refused
from fedboost.holders import scoring
from fedboost.holders.scoring import FeatureEnd, Link, Scorer
from fedboost.privacy.identity import in_memory
from fedboost.privacy.packing import number
from fedboost.protocol.key_exchange import Credentials
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = bytes.fromhex(MODEL)


class Counted:
    """A meter with a limit; what it charged."""

    def __init__(self, most=10**9, fewest=1, lists=1):
        self.most, self.fewest, self.charged, self.lists = most, fewest, [], lists

    def charge(self, ids):
        if sum(self.charged) + ids > self.most:
            raise Refused("score-limit", f"more than {self.most} ids")
        self.charged.append(ids)

    def begin_list(self):
        if not self.lists:
            raise Refused("score-many-lists", "the list was sent too often")
        self.lists -= 1


def carried(sender, receiver, content):
    """A message that travels over a link, in frames."""
    *early, whole = [receiver.open(frame) for frame in sender.seal(content)]
    assert not any(early)
    return whole


class Scoring:
    """A label holder and the other parties of a model: tables, links and ends. `down(party, content)` is what
    a feature holder is told in the place of a message; secrets: of parties, by name."""

    def __init__(self, layout="three holders", setting="logistic", most_ids=10**6, tables=None, **meter):
        self.tables = tables_of(layout) if tables is None else tables
        self.terms = terms_for(layout, setting, self.tables)
        self.models, names = models_of(self.terms, setting), list(self.tables)
        self.signers, self.roots = in_memory(names, NOW)
        self.secrets = {name: bytes([place + 1]) * 32 for place, name in enumerate(names)}
        self.meters = {name: Counted(**meter) for name in names[1:]}
        self.lists, self.most_ids = [], most_ids
        self.scorer = self.scorer_with(self.secrets["bank"])
        self.down = lambda party, content: content
        self.ends, self.links, self.ready, self.told = {}, {}, {}, []

    def scorer_with(self, secret):
        about = self.terms, "bank", self.models["bank"], ID, secret
        return Scorer(*about, most_ids=self.most_ids, begin_list=self.lists.append)

    def credentials(self, name):
        return Credentials(self.signers[name], self.roots, (), lambda: NOW)

    def linked(self, party, draw=urandom):
        """Both ends of a link: the label holder's, and the other party's."""
        ours = Link("bank", party, True, ID, self.credentials("bank"), draw)
        theirs = Link(party, "bank", False, ID, self.credentials(party), draw)
        ours.meet(theirs.greeting)
        theirs.meet(ours.greeting)
        return ours, theirs

    def end(self, party, table=None):
        rows = to_shard(as_table(self.tables[party]), self.terms, party)
        meter, about = self.meters[party], (self.terms, party, self.models[party], ID, self.secrets[party])
        limits = {"fewest": meter.fewest, "charge": meter.charge, "begin_list": meter.begin_list}
        return FeatureEnd(*about, rows=rows, table=table, **limits)

    def say(self, party, content):
        """Tell a feature holder something: what it answers."""
        ours, theirs = self.links[party]
        back = carried(theirs, ours, self.ends[party].take(carried(ours, theirs, self.down(party, content))))
        self.told += [(party, content), (party, back)]
        return back

    def begin(self, party, table=None):
        """Greet a party, and make its table if need be."""
        self.links[party], self.ends[party] = self.linked(party), self.end(party, table)
        back = self.say(party, self.scorer.hello(party))
        while back[0] == scoring.LIST:
            back = self.say(party, self.scorer.multiplied(back, party))
        if back[0] == scoring.READY:
            (self.ready[party],) = scoring.fields_of(back, scoring.READY, 1, party)
        return back

    def begin_all(self):
        for party in self.scorer.others:
            self.begin(party)
        return self

    def rows(self, table):
        return to_shard(as_table(table), self.terms.changed(repeated_ids=True), "bank")

    def score(self, table, without=()):
        """Scores of rows with the label holder's columns."""
        rows = self.rows(table)
        points, of_row = self.scorer.question(rows.ids)
        told = {party: self.ready[party] for party in without}
        for party in self.scorer.others:
            if party not in without:
                told[party] = self.ask(party, points)
        return self.scorer.score(rows, of_row, told, without)[0]

    def ask(self, party, points, about=1):
        """The leaf bits of a party; raises what it refuses with."""
        answer = self.say(party, scoring.message(scoring.ASK, number(about), points))
        if answer[0] == scoring.REFUSAL:
            _, code, sentence = scoring.fields_of(answer, scoring.REFUSAL, 3, party)
            raise Refused(code.decode(), sentence.decode())
        told, bits = scoring.fields_of(answer, scoring.ANSWER, 2, party)
        assert told == number(about)
        return bits


__all__ = ["FEWEST", "ID", "NOW", "Counted", "Scoring"]
