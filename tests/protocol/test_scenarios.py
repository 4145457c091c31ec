"""Plays the scenario files: each is the transcript of one end of a session, and must come out word for word.

    # a comment
    aggregator parties=north,south program=Rows,End     the end that is played, and its setting
    north < Join                                        in:  what party north says to the aggregator
    north > Ask turn=1 RowsQuery                        out: what the aggregator says to party north
    = asking, awaits north south                        the state, where it changed
    = sum 8                                             what the scripted program got (cells that are not 0)
    Tick 700                                            700 seconds have passed

    party north shard=4                                 a party's own end, with four rows
    < Offer                                             in:  what the aggregator says
    > Join                                              out: what this party says
    = ended: done

Lines with `<`, and Tick, are the script; the player adds all others.
`python tests/protocol/test_scenarios.py`
writes the files anew from their scripts: read the difference before you believe it.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import START_BITS, RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Shard
from fedboost.privacy import packing
from fedboost.privacy.packing import chunks_of
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Attempt, session_digest
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    Connected,
    Disconnected,
    Introduce,
    Join,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Report,
    SessionEnded,
    digest_of_roster,
    first_transcript,
    next_transcript,
    tag_of,
)
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.terms.terms import Terms

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
BITS = Scale(0, 16)
CUTS = CutPoints.of((np.array([0.5], np.float32),), (False,))
QUERIES = {
    "Rows": RowsQuery(),
    "Quantiles": QuantileQuery(4, Grids.first(1)),
    "Start": StartQuery(4, CUTS, Scale(0, START_BITS), Scale(0, START_BITS)),
    "Histogram": HistogramQuery(4, 0, (), (0,), 2, BITS, BITS),
    "Wide": HistogramQuery(4, 0, (), (0,), 80_000, BITS, BITS),  # 80,001 cells: two parts
    "Constant": EndRoundQuery(4, CONSTANT_TREE, (), ((0, 0.0),), ("logloss",), UNIT, False),
    "End": EndRoundQuery(4, 0, (), ((0, 0.0),), ("logloss",), UNIT, False),
}
RAISES = {
    "PeerError": PeerError("test", "the sums do not add up"),
    "ConfigError": ConfigError("test", "the label is 0 in every row"),
}


def words_of(text):
    """`a b=1 c` as (["a", "c"], {"b": "1"})."""
    words = text.split()
    return [w for w in words if "=" not in w], dict(w.split("=", 1) for w in words if "=" in w)


def terms_of(parties, **settings):
    columns = {"label": "y", "numeric": ["x"]}
    fixed = {"columns": columns, "parties": parties.split(","), "rounds": 1, "protection": "plain"}
    return Terms.read({**fixed, **numbers(settings)})


def numbers(settings):
    """Settings that are written with digits are numbers."""
    return {key: int(value) if value.isdigit() else value for key, value in settings.items()}


def shown(message):
    """A message as a line of a transcript."""
    match message:
        case Offer():
            return "Offer"
        case Ask():
            return f"Ask turn={message.turn} {type(message.query).__name__}"
        case SessionEnded(reason) | Leave(reason):
            return f"{type(message).__name__} {reason}".rstrip()
        case Join() | Introduce() | Close():
            return type(message).__name__
        case OpenRequest(turn) | OpenShare(turn):
            return f"{type(message).__name__} turn={turn}"
        case Attest():
            return f"Attest turns={message.turns}"
        case Report():
            return f"Report turn={message.turn} part={message.part} bytes={len(message.cells)}"


class Aggregator:
    """Plays an aggregator's session against what the script says the parties say."""

    def __init__(self, setting):
        _, values = words_of(setting)
        self._script = [name for name in values.pop("program").split(",") if name]
        self._got = []
        self._asked = []
        self._session = AggregatorSession("s", terms_of(**values), self._program, INITIAL_STATE)
        self._state = ""
        self._transcript = b""
        self.opening = self._told(self._session.start())

    def _program(self, terms, grown):
        for name in self._script:
            if name in RAISES:
                raise RAISES[name]
            self._asked.append(QUERIES[name])
            total = yield QUERIES[name]
            cells = [str(cell) for cell in total.tolist() if cell]
            self._got.append(f"= sum {' '.join(cells) or 0}")
        return Booster(terms.objective.loss, 0.5, terms.columns.features, ())

    def play(self, line):
        party, _, event = line.partition(" < ")
        outbox = (
            self._session.tick(float(party.removeprefix("Tick ")))
            if party.startswith("Tick ")
            else self._session.handle(party, self._event(event))
        )
        told = self._told(outbox)
        assert self._session.phase not in ("closing", "done") or self._session.booster is not None
        assert (self._session.phase == "failed") == (self._session.error is not None)
        return told

    def _event(self, text):
        (kind, *rest), values = words_of(text)
        match kind:
            case "Join":
                others = numbers({key: value for key, value in values.items() if key != "attempt"})
                terms = self._session.terms.changed(**others) if others else self._session.terms
                return Join(rest[0] if rest else "s", terms.digest, self._attempt(values))
            case "Report":
                part, query = int(values.get("part", 0)), self._asked[-1] if self._asked else RowsQuery()
                tag = tag_of(Ask(0, 0, b"", query), (), b"")
                place = tag.chunks[part] if part < len(tag.chunks) else chunks_of(())[0]
                cells = np.zeros(place.cells, np.int64)
                cells[:1] = int(values.get("first", 0))
                packed = place.packed(cells.view(np.uint64))
                size = int(values.get("bytes", len(packed)))
                return Report(int(values["turn"]), self._attempt(values), part, packed[:size])
            case "Attest":
                return Attest(self._attempt(values), 1, self._transcript, b"", b"", b"")
            case "OpenShare":
                return OpenShare(int(values["turn"]), self._attempt(values), b"help")
            case "Connected":
                return Connected()
            case "Leave":
                return Leave(text.removeprefix("Leave "))
            case "Disconnected":
                return Disconnected(text.removeprefix("Disconnected "))
        raise AssertionError(f"no such event: {text}")

    def _attempt(self, values):
        return int(values.get("attempt", self._session.attempt))

    def _told(self, outbox):
        lines, self._got = list(self._got), []
        lines += [f"{party} > {shown(message)}" for party, message in outbox]
        for _, message in outbox[-1:] if outbox and isinstance(outbox[-1][1], Ask) else []:
            for other in {id(m): m for _, m in outbox if isinstance(m, Introduce)}.values():
                attempt = Attempt("s", self._session.attempt, self._session.terms)
                digest = session_digest(attempt, other.greetings)
                self._transcript = first_transcript(digest, other.state)
            self._transcript = next_transcript(self._transcript, message.query)
        session = self._session
        state = session.phase
        if session.awaited:
            state += ", awaits " + " ".join(session.awaited)
        if session.error:
            state += f": {session.error}"
        if session.roster != session.terms.parties:
            state += f", roster {' '.join(session.roster)}"
        for done in session.history:
            state += f", round {done.round} {done.metrics}"
        if state != self._state:
            lines.append(f"= {state}")
            self._state = state
        return lines


class OneParty:
    """Plays a party's session against what the script says the aggregator says."""

    def __init__(self, setting):
        (name, *_), values = words_of(setting)
        rows = values["shard"]

        def read(terms):
            if rows == "refused":
                raise Refused("test", "column 'x' is missing in its table")
            if rows == "secret":
                raise Refused("test", "column 'x' has a value that is no number", "'four' in row 3")
            column = np.arange(int(rows), dtype=np.float32) % 2
            return Shard((column,), column, np.ones_like(column))

        self._session = PartySession(Site(name, holder_for(read, name), bytes))
        self._attempt = 1
        self._admitted = terms_of("north,south")
        self._ended = None
        self.opening = []

    def play(self, line):
        messages = list(self._session.handle(self._message(line.removeprefix("< "))))
        lines = [f"> {shown(message)}" for message in messages]
        for message in messages:
            if isinstance(message, Join):
                greeting = packing.pack(self._session._site.name.encode())
                assert message == Join("s", self._admitted.digest, self._attempt, greeting)
        if self._session.ended != self._ended:
            self._ended = self._session.ended
            lines.append(f"= ended: {self._ended or 'done'}")
        return lines

    def _message(self, text):
        (kind, *rest), values = words_of(text)
        attempt = int(values.pop("attempt", self._attempt))
        match kind:
            case "Offer":
                self._admitted = terms_of(**{"parties": "north,south", **values})
                self._attempt = attempt
                return Offer("s", self._admitted, attempt)
            case "Introduce":
                names = self._admitted.parties
                return Introduce(tuple(packing.pack(name.encode()) for name in names), INITIAL_STATE)
            case "OpenRequest":
                return OpenRequest(int(values["turn"]), attempt, b"")
            case "Close":
                return Close(attempt, 0)
            case "Ask":
                turn = int(values.pop("turn"))
                query = QUERIES[rest[0]]
                for key, value in values.items():
                    if key == "bits":
                        scale = Scale(0, int(value))
                        query = dataclasses.replace(query, gradient=scale, hessian=scale)
                    elif key == "nodes":
                        query = dataclasses.replace(query, nodes=tuple(range(int(value))))
                    elif key == "widths":
                        query = dataclasses.replace(query, widths=bytes(map(int, value.split(","))))
                    elif key == "metrics":
                        query = dataclasses.replace(query, metrics=tuple(value.split(",")))
                    elif key == "features":
                        query = dataclasses.replace(query, grids=Grids.first(int(value)))
                    elif key == "value":
                        query = dataclasses.replace(query, values=((0, float(value)),))
                    else:
                        query = dataclasses.replace(query, **{key: int(value)})
                return Ask(turn, attempt, digest_of_roster(self._admitted.parties), query)
            case "SessionEnded":
                return SessionEnded(text.removeprefix("SessionEnded").strip())
        raise AssertionError(f"no such message: {text}")


def played(text):
    """The transcript that the comments, the setting and the `<` lines of a scenario give."""
    out, player = [], None
    for line in text.splitlines():
        if line.startswith("#"):
            out.append(line)
        elif player is None:
            end, setting = line.split(maxsplit=1)
            player = {"aggregator": Aggregator, "party": OneParty}[end](setting)
            out += [line, *player.opening]
        elif line.startswith(("< ", "Tick ")) or " < " in line:
            out += [line, *player.play(line)]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path):
    text = path.read_text()
    assert played(text) == text


def test_there_are_scenarios():
    assert len(SCENARIOS) > 20


if __name__ == "__main__":
    for path in SCENARIOS:
        path.write_text(played(path.read_text()))
