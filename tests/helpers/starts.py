"""A site that is started, with or without its memory."""

from memories import ANY, THREE, question
from sites import Log

from fedboost.protocol.contracts import NOWHERE
from fedboost.protocol.site import Release, SessionOffer
from fedboost.runtime.site.backup import open_memory
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.node import PartyNode

SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "north.parquet"\ndataset = "patients"\n'
RULES = "[policy]\nepsilon = 1.2\ndelta = 1e-5\n"


class Running:
    """What a party has at its start, and what it notes of sessions."""

    def __init__(self, file):
        self.config, self.log = read_party(file), Log()
        self.memory = open_memory(self.config, self.log, lambda terms: {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()

    def begin(self, name, agreement):
        return self.memory.begin(SessionOffer(name, agreement), ANY)

    def answer(self, session, name, turn, charge=None):
        """As a session does."""
        with session.together():
            if charge:
                session.charge(charge.name, charge.cost)
            session.ask(question(turn), NOWHERE, question(turn).after)
            self.record(name, turn, charge)

    def record(self, name, turn, charge=None):
        place = question(turn).digest.hex(), ""
        self.memory.record(Release(name, turn, 1, "RangeQuery", 256, 100, "masked", THREE, charge, *place))

    def end(self, session, name, reason=""):
        session.end(reason)
        self.memory.ended(name, reason)


def starts(file):
    """A party that starts and stops again: what it logged."""
    log = Log()
    node = PartyNode(read_party(file), log, None)
    node.close()
    return log.events
