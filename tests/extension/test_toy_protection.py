"""A protection added as an outsider would: a sealer, an opener and one row of the table, and no other place.

The toy adds a public constant of each party to its cells, and the opener subtracts it again. It hides nothing
from anybody who knows the names, but its bytes are not those of `plain`.
"""

import hashlib
import re

import numpy as np
import pytest

from fedboost import Terms, simulate
from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.privacy.ends import PlainSealer
from fedboost.privacy.packing import Segment, signed
from fedboost.privacy.protection import Tag, check_newer
from fedboost.privacy.protections import PROTECTIONS, Protection
from fedboost.runtime.site.policy import Policy
from fedboost.views.approval import summary

# ---- privacy/offset.py ------------------------------------------------------------------------------


def offset_of(party):
    return np.frombuffer(hashlib.sha256(party.encode()).digest()[:8], np.uint64)[0]


class OffsetSealer:
    ctx = b""

    def __init__(self, me):
        self._offset, self._last = offset_of(me), None

    def seal(self, values, tag):
        check_newer(tag, self._last)
        self._last = tag
        words = np.ascontiguousarray(values).view(np.uint64) + self._offset
        return (part.packed(part.of(words)) for part in tag.chunks)

    def note(self):
        return b""

    def assist(self, request):
        raise PeerError("test", "protection offset needs no help")


class OffsetOpener:
    ctx = b""

    def __init__(self, tag):
        self.chunks, self._tag = len(tag.chunks), tag
        self._sum = np.zeros(tag.cells, np.uint64)

    def add(self, party, part, cells):
        piece = self._tag.chunk(part)
        piece.add(piece.of(self._sum), cells)

    def note(self, party, note):
        if note:
            raise PeerError("test", "a note where protection offset has none")

    def lose(self, party):
        pass

    def requests(self):
        return {}

    def assist(self, party, answer):
        raise PeerError("test", "help that protection offset did not ask for")

    def open(self):
        for party in self._tag.roster:
            self._sum -= offset_of(party)
        return signed(self._sum, self._tag.segments)


# ---- privacy/protections.py -------------------------------------------------------------------------

ROW = Protection(
    "offset",
    hides=True,
    aggregator_observes="this site's own numbers and a constant",
    sealer=lambda setup: OffsetSealer(setup.me),
    opener=lambda tag, setup: OffsetOpener(tag),
    min_parties=3,
    sealed_size=lambda tag: tag.size,
)


# ---- its tests --------------------------------------------------------------------------------------

SETTINGS = {"columns": {"label": "y", "numeric": ["a", "b"]}, "rounds": 3, "max_depth": 3, "max_bin": 16}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(PROTECTIONS, "offset", ROW)


def tables(parties=3, rows=80):
    draw = np.random.default_rng(0)
    made = [{name: draw.standard_normal(rows) for name in "ab"} for _ in range(parties)]
    return [{**table, "y": (table["a"] > table["b"]).astype(float)} for table in made]


def trained(protection, **settings):
    return simulate(Terms.read({**SETTINGS, "protection": protection, **settings}), tables())


@pytest.mark.parametrize("settings", [{}, {"objective": "reg:squarederror"}, {"eval_metric": ["auc"]}])
def test_the_model_has_the_bytes_of_the_plain_one(settings):
    offset, plain = trained("offset", **settings), trained("plain", **settings)
    assert offset.model.booster.to_xgboost() == plain.model.booster.to_xgboost()
    assert offset.model.protection == "offset"
    assert len(offset.model.attestations) == 3


def test_what_travels_is_not_what_travels_under_plain():
    tag, values = Tag(1, 1, ("p0", "p1", "p2"), b"", (Segment(40, 30),)), np.arange(40)
    sealed = b"".join(OffsetSealer("p0").seal(values, tag))
    assert len(sealed) == tag.size
    assert sealed != b"".join(PlainSealer(False).seal(values, tag))


def test_people_and_sites_know_it_from_its_row():
    parties = {"parties": ["p0", "p1", "p2"], "protection": "offset", "min_child_weight": 10.0}
    terms = Terms.read({**SETTINGS, **parties})
    assert "sees this site's own numbers and a constant" in re.sub(r"\s+", " ", summary(terms))
    named = {"parties": "any", "analysts": "any", "columns": "any"}
    with pytest.raises(Refused, match='the terms have protection = "offset"'):
        Policy.model_validate(named).permit(terms, "p0")
    Policy.model_validate({**named, "protections": ["offset"]}).permit(terms, "p0")


def test_a_name_that_is_not_in_the_table_is_refused(monkeypatch):
    monkeypatch.delitem(PROTECTIONS, "offset")
    with pytest.raises(ConfigError, match=r"unknown protection 'offset'; known: plain, masked, paillier$"):
        trained("offset")
