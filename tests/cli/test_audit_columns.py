"""`fedboost audit` where parties hold different columns: what a site is told of its own part."""

import dataclasses
import re

import numpy as np
import pytest
from audit_logs import RELEASE, AuditLog
from sites import fedboost

from fedboost.cli import site
from fedboost.holders.alignment import KNOWN
from fedboost.holders.columns import LEAF_BITS, VerticalHolder
from fedboost.protocol.contracts import AND
from fedboost.protocol.site import Relayed
from fedboost.views.approval import OF_LABEL_HOLDER, OF_LABELS, RELAYED, summary
from tests.helpers.apart_sessions import Apart
from tests.helpers.columns_apart import LAYOUTS, matched, pooled, scattered

PARTIES = ["bank", "telco"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.audit.jsonl"


def of_columns(log, name, agreed, party, releases=(), relays=(), **about):
    """A session in which parties hold different columns, as a party records it."""
    log.admitted(name, agreed, party=party, **about)
    protection = agreed.protection.name
    for turn, what in enumerate(releases, 1):
        log.record(
            dataclasses.replace(
                RELEASE, session=name, turn=turn, what=what, roster=agreed.parties, protection=protection
            )
        )
    for what, to, count in relays:
        log.record(Relayed(name, 1, 1, what, to, count, 40))


def told(path, capsys, **how):
    site.audit(path, json=False, **how)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[1:])) < 80
    return " ".join(out.split())


@pytest.mark.parametrize(("reason", "end"), [("", "prediction"), ("party bank was lost", "no prediction")])
def test_a_prediction_is_told_as_its_terms_are(path, capsys, reason, end):
    """Nothing is encrypted there, and the aggregator sees no numbers of this site even so."""
    agreed = matched(LAYOUTS["two holders"], protection="paillier", model="parties").with_parties(PARTIES)
    agreed = agreed.changed(predict_with="0" * 64, predict_rows=320)
    relays = [("which rows it has", ("bank",), 320), ("leaf bits", ("bank",), 320)]
    with AuditLog(path) as log:
        for name in ("one", "two"):
            of_columns(log, name, agreed, "telco", ["ReachQuery"], relays)
            log.ended(name, reason)
    text = told(path, capsys)
    seen = "aggregator relays messages that it cannot read, and learns the number of rows"
    assert (
        text.count(f"{seen} relayed for each of 320 requested row ids (people), whether this site has it")
        == 2
    )
    assert seen in " ".join(summary(agreed).split())
    assert "own numbers" not in text
    assert "which way it goes at each of this site's splits, once, 40 B, to bank" in text
    assert "(zeros: the label holder answers it)" in text
    assert re.search(rf" two 20\S+ \S+ 1 {end}\b", text)
    assert ("ended without a prediction: party bank" in text) == bool(reason)
    assert '"protections": ["paillier"]' in fedboost("audit", path, "--json").out


@pytest.mark.parametrize("protection", ["plain", "paillier"])
@pytest.mark.parametrize("party", PARTIES)
def test_a_training_tells_a_site_of_its_own_columns_and_numbers(path, capsys, party, protection):
    agreed = matched(LAYOUTS["two holders"], protection=protection).with_parties(PARTIES)
    other = PARTIES[party == "bank"]
    both = f"EndRoundQuery{AND}HistogramQuery"
    asked = ["RowsQuery", "StartQuery", "HistogramQuery", both]
    relays = [("blinded row ids", (other,), 2200), ("which rows go left", (other,), 1948)]
    with AuditLog(path) as log:
        names = {"id": "customer no", "calls": "c1"}
        of_columns(log, "one", agreed, party, asked, relays, names=names)
    text, listed = told(path, capsys), told(path, capsys, session="one")
    own = {
        "bank": 'own columns 5: y, id (at this site: "customer no"), age, income, visits; other parties '
        "have 3 more",
        "telco": 'own columns 4: id (at this site: "customer no"), minutes, calls (at this site: c1), '
        "colour; other parties have 4 more",
    }
    assert own[party] in text
    assert "in common 1,948 rows: the aggregator and the other parties know this number" in text
    assert text.index("relayed blinded row ids of 2,200 rows") < text.index("what left")
    zeros, encrypted = party == "telco", party == "telco" and protection == "paillier"
    assert text.count("(zeros: this site has no labels)") == 3 * zeros
    for shown in (text, listed.split("turn attempt")[1]):
        assert ("sums over groups of rows, encrypted" in shown) == encrypted
        assert ("sums over groups of rows, by interval" in shown) != encrypted


def test_a_training_whose_site_is_not_named_has_all_columns(path, capsys):
    agreed = matched(LAYOUTS["two holders"]).with_parties(PARTIES)
    with AuditLog(path) as log:
        of_columns(log, "one", agreed, "", ["RowsQuery"])
    text = told(path, capsys)
    assert "from columns 8: y, id, age," in text
    assert "zeros" not in text


def test_relays_whose_words_are_others_here_are_those_that_parties_send():
    assert set(RELAYED) == {KNOWN, LEAF_BITS}


@pytest.mark.parametrize("metric", ["logloss", "mae"])
def test_what_is_called_zeros_is_zeros_and_nothing_else_is(monkeypatch, metric):
    """Of a whole training, of each question; medians ask how far off labels are."""
    answers, answering = {}, VerticalHolder.answering

    def noted(self, query):
        values = yield from answering(self, query)
        if self._name == "telco":
            begin = 0
            for part in query.parts:
                cells = values.values[begin : begin + part.cells]
                answers.setdefault(part.name, []).append(cells)
                begin += part.cells
        return values

    monkeypatch.setattr(VerticalHolder, "answering", noted)
    objective = {"logloss": "binary:logistic", "mae": "reg:absoluteerror"}[metric]
    ids = {"rows": "common", "min_common_rows": 1, "columns": {"row_id": "id"}}
    tables, _ = scattered(LAYOUTS["two holders"], pooled(60))
    apart = Apart("two holders", tables=tables, objective=objective, eval_metric=[metric], **ids).play()
    assert apart.error == ""
    zeros = {name for name, values in answers.items() if not np.concatenate(values).any()}
    assert zeros == set(answers) & (OF_LABELS | OF_LABEL_HOLDER)
    assert zeros >= {"RowsQuery", "StartQuery", "EndRoundQuery", "PlacesQuery"}
    assert ("ResidualQuery" in zeros) == (metric == "mae")
