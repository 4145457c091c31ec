"""Each rule by which `fedboost audit` warns, alone."""

import dataclasses
import json

import pytest
from audit_logs import AuditLog, change_terms
from logged import WITH_NOISE, agreement, answer, warnings
from sites import fedboost

from fedboost.protocol.site import Charge
from fedboost.runtime.site.audit import read_log, terms_in


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p0.audit.jsonl"


ONE_TREE = ("RowsQuery", "StartQuery", "EndRoundQuery", "HistogramQuery", "HistogramQuery", "EndRoundQuery")


def honest(terms):
    """The answers of a session of one round and depth 2."""
    return [answer(terms, turn, what) for turn, what in enumerate(ONE_TREE, 1)]


def written(path, terms, releases, name="s1", **admission):
    with AuditLog(path) as log:
        log.admitted(name, terms, **admission)
        for release in releases:
            log.record(dataclasses.replace(release, session=name))


def changed(release, **settings):
    return dataclasses.replace(release, **settings)


ABUSES = {
    "other-question": lambda known: changed(known[4], attempt=2, question="ab" * 32),
    "other-position": lambda known: changed(known[4], attempt=2, position="ab" * 32),
    "other-roster": lambda known: changed(known[1], attempt=2, roster=("p0", "p1", "p2")),
    "too-many": lambda known: changed(known[5], turn=7),
}


@pytest.mark.parametrize(("kind", "allowed"), [("RowsQuery", 1), ("StartQuery", 1), ("SumsQuery", 0)])
def test_a_question_too_many_of_any_kind_is_enough(kind, allowed, path):
    terms, _ = agreement(rounds=4, max_depth=6)  # so that there is room for more questions in all
    written(path, terms, [answer(terms, turn, kind) for turn in range(1, allowed + 1)])
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(answer(terms, allowed + 1, kind))
    assert warnings(path) == ["too-many"]


def test_the_most_serious_warnings_come_first(path):
    terms, _ = agreement(rounds=1, **WITH_NOISE)
    written(path, terms, [answer(terms, 2, "SumsQuery")])
    group = terms.with_parties((*terms.parties, "p3"))
    written(path, group, [answer(group, turn, "SumsQuery") for turn in (2, 3)], "s2")
    assert warnings(path) == ["too-many", "similar-groups"]
    events = map(json.loads, fedboost("audit", path, "--json").out.splitlines())
    assert [event["kind"] for event in events if event["event"] == "warning"] == ["abuse", "check"]


def test_agreements_that_differ_in_much_are_told_in_short(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms))
    other = terms.changed(rounds=2, max_depth=3, seed=5, max_bin=16, reg_lambda=2.0, gamma=1.0, reg_alpha=1.0)
    written(path, other, honest(terms))
    text = " ".join(fedboost("audit", path).out.split())
    assert "rounds was 1, then 2; max_depth was 2, then 3; max_bin was 8, then 16;" in text
    assert "; and 2 more settings." in text
    change_terms(path, other.digest, None)
    assert "how they differ is unknown" in " ".join(fedboost("audit", path).out.split())


@pytest.mark.parametrize("rule", ABUSES)
def test_one_answer_that_does_not_fit_is_enough(rule, path):
    terms, _ = agreement(4, rounds=1, on_loss="shrink")
    known = honest(terms)
    written(path, terms, known)
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(ABUSES[rule](known))
    assert warnings(path) == [rule]


def test_a_roster_that_the_terms_do_not_allow(path):
    terms, _ = agreement(4, rounds=1)
    last = changed(honest(terms)[-1], roster=("p0", "p1", "p2"))
    written(path, terms, [*honest(terms)[:-1], last])
    assert warnings(path) == ["small-roster"]
    path.unlink()
    written(path, terms.changed(on_loss="shrink"), [*honest(terms)[:-1], last])
    assert warnings(path) == []


def test_a_tree_cut_short_where_the_terms_let_the_roster_shrink(path):
    """The end of the tree comes instead of its second histogram, without the party that was lost."""
    terms, _ = agreement(4, rounds=2, on_loss="shrink")
    known = honest(terms)
    end = changed(known[5], turn=5, attempt=2, roster=("p0", "p1", "p2"))
    written(path, terms, [*known[:5], end])
    assert warnings(path) == []
    path.unlink()
    written(path, terms.changed(on_loss="wait"), [*known[:5], end])
    assert warnings(path) == ["other-question", "other-roster", "small-roster"]


def test_another_answer_to_the_same_question(path):
    """A table that is read again with other rows gives the difference of the two sums: its changed rows."""
    terms, _ = agreement(rounds=1, **WITH_NOISE)
    known = answer(terms, 2, "SumsQuery", charge=Charge("a", 0.1))
    written(path, terms, [known, changed(known, attempt=2)])
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(changed(known, attempt=3, charge=Charge("b", 0.1)))
    assert warnings(path) == ["other-answer"]


def test_a_first_attempt_that_is_not_the_first(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)], attempt=2)
    assert warnings(path) == ["first-attempt"]


def test_a_party_that_is_put_back_answers_in_an_attempt_of_before(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms)[:3])
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:3]], attempt=2)
    assert warnings(path) == []
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:4]], attempt=2)
    assert warnings(path) == ["attempt-again"]


@pytest.mark.parametrize("reason", ["", "another session began", "turn 5 comes after turn 1"])
def test_a_session_that_ended_goes_on(reason, path):
    """A living party forgets a session that it left, or that another one pushed aside."""
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms)[:3])
    with AuditLog(path) as log:
        log.ended("s1", reason)
    written(path, terms, [], attempt=2)
    assert warnings(path) == []  # nothing left
    with AuditLog(path) as log:
        log.record(changed(honest(terms)[3], attempt=2))
    assert warnings(path) == ["after-end"]
    with AuditLog(path) as log:
        log.ended("s1", "")
    text = " ".join(fedboost("audit", path).out.split())
    assert "Session s1 (2 of 2), after it had ended: see warning 1" in text
    assert "in all, after the session ended 1 34 200 B" in text
    assert "ended again, with a model, according to the aggregator" in text


def test_an_aggregator_cannot_make_an_end_look_like_a_pause(path):
    terms, _ = agreement(rounds=1)
    for reason, paused, due in (("this site stopped", True, []), ("this site stopped", False, ["after-end"])):
        written(path, terms, honest(terms)[:3])
        with AuditLog(path) as log:
            log.ended("s1", reason, paused)
        written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:4]], attempt=2)
        assert warnings(path) == due
        path.unlink()


def test_a_request_of_the_analyst_for_two_sessions(path):
    terms, _ = agreement(rounds=1)
    for name, request in (("s1", "ab" * 32), ("s2", "cd" * 32)):
        written(path, terms, honest(terms), name, analyst="anna", request=request)
    assert warnings(path) == []
    written(path, terms, honest(terms), "s3", analyst="anna", request="ab" * 32)
    assert warnings(path) == ["request-again"]


def test_terms_that_are_missing_or_changed(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms))
    whole = terms_in(path)[terms.digest]
    assert warnings(path) == []
    change_terms(path, terms.digest, whole.replace('"rounds":1', '"rounds":9'))
    assert warnings(path) == ["terms"]
    assert "their SHA-256 does not match" in " ".join(fedboost("audit", path).out.split())
    change_terms(path, terms.digest, None)
    assert warnings(path) == ["terms"]
    assert "has no terms with digest" in " ".join(fedboost("audit", path).out.split())
    change_terms(path, terms.digest, whole)
    assert warnings(path) == []


@pytest.mark.parametrize("digest", ["\0", "../north", "f" * 5000])
def test_a_log_that_names_no_digest_is_warned_of(digest, path):
    written(path, agreement(rounds=1)[0], [])
    entry = read_log(path)[0]
    entry = entry.model_copy(update={"event": entry.event.model_copy(update={"terms": digest})})
    export = path.with_suffix(".export")
    export.write_bytes(entry.model_copy(update={"hash": entry.due_hash}).line)
    assert warnings(export) == ["terms"]


def test_groups_that_differ_by_as_many_as_collude(path):
    first, _ = agreement(6, rounds=1, colluding=2)
    second = first.with_parties(("p0", "p1", "p2", "p3", "q4", "q5"))
    third = first.with_parties(("p0", "p1", "p2", "p3", "p4", "r5", "r6"))
    written(path, first, honest(first), "s1")
    written(path, second, honest(second), "s2")
    assert warnings(path) == []  # four differ, of whom two may collude
    written(path, third, honest(third), "s3")
    assert warnings(path) == ["similar-groups"]  # three
    for agreed in (first, third):
        change_terms(path, agreed.digest, None)
    assert warnings(path) == ["similar-groups", "terms", "terms"]  # s2's terms still say two


SHARED = (
    *("RowsQuery + QuantileQuery", "StartQuery", "EndRoundQuery + HistogramQuery", "HistogramQuery"),
    *("EndRoundQuery + HistogramQuery", "HistogramQuery", "EndRoundQuery"),
)


def test_queries_that_share_a_turn_are_named_and_counted_each(path):
    terms, _ = agreement(rounds=2, max_depth=2)
    written(path, terms, [answer(terms, turn, what) for turn, what in enumerate(SHARED, 1)])
    assert warnings(path) == []
    for text in (fedboost("audit", path).out, fedboost("audit", path, "--session", "s1").out):
        assert "row count; label and weight magnitudes" in text
        assert "how many rows lie in each column interval" in text
    level = SHARED.index("HistogramQuery")
    more = [*SHARED[:level], "HistogramQuery", *SHARED[level:]]
    written(path, terms, [answer(terms, turn, what) for turn, what in enumerate(more, 1)], "s2")
    assert warnings(path) == ["too-many"]
