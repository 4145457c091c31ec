"""One contract for a site's memory, in a process and on disk: what it refuses, and what it knows later."""

import os
import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from raised import raised

from fedboost.errors import Refused
from fedboost.protocol.contracts import MAX_GROUPS, NOWHERE
from fedboost.protocol.site import (
    MAX_OFFERS,
    OFFER_DAYS,
    Limits,
    Question,
    SessionOffer,
    Standing,
    TransientMemory,
)
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.store import make_file
from fedboost.terms.terms import Terms

LIMITS = Limits()
FIVE = ("north", "south", "east", "west", "centre")


class InProcess:
    """A memory that lives as long as its process."""

    def __init__(self, folder):
        self.days = 0.0
        self.memory = TransientMemory(os.urandom, "north", clock=lambda: self.days)

    def restart(self):
        pass

    def close(self):
        pass


class OnDisk:
    """A memory in a file."""

    def __init__(self, folder):
        self.days = 0.0
        self.path = folder / "memory.sqlite"
        make_file(self.path, "patients")
        self.memory = self.opened()

    def opened(self):
        return FileMemory(self.path, "north", "patients", clock=self.now)

    def now(self):
        return f"{datetime(2026, 1, 1) + timedelta(days=self.days):%Y-%m-%dT%H:%M:%SZ}"

    def restart(self):
        self.memory.close()
        self.memory = self.opened()

    def close(self):
        self.memory.close()


@pytest.fixture(params=[InProcess, OnDisk])
def site(request, tmp_path):
    held = request.param(tmp_path)
    yield held
    held.close()


def agreed(parties=FIVE[:4], **settings):
    """Terms that these parties would agree to."""
    return Terms.read({"columns": {"label": "y", "numeric": ["age"]}, "parties": list(parties), **settings})


def offer(session="s", terms=None, attempt=1, request=b"", analyst=""):
    analyst = analyst or ("ann" if request else "")
    return SessionOffer(session, terms or agreed(), attempt, analyst, request)


def place(number):
    """Somewhere in a session."""
    return replace(NOWHERE, rounds=number, levels=number % 3, model=bytes([number]) * 32)


def question(turn, of_tree=True):
    return Question(turn, bytes([turn]) * 32, of_tree, place(turn), place(turn + 1))


# ---- what is refused --------------------------------------------------------------------------------


def met(site, name, terms=None, limits=LIMITS):
    """A session in which the parties met."""
    session = site.memory.begin(offer(name) if terms is None else offer(name, terms), limits)
    session.meet(1)
    return session


def test_a_session_that_ended_is_refused_by_name(site):
    for name, reason in (("made", ""), ("failed", "the aggregator ended the session")):
        site.memory.begin(offer(name), LIMITS).end(reason)
        site.restart()
        for attempt in (1, 2):
            with raised(Refused, "session-ended", naming=[name]):
                site.memory.begin(offer(name, attempt=attempt), LIMITS)


def test_a_name_is_of_one_session(site):
    site.memory.begin(offer(), LIMITS)
    site.restart()
    with raised(Refused, "session-terms"):
        site.memory.begin(offer(terms=agreed(max_depth=2)), LIMITS)
    site.memory.begin(offer(), LIMITS)


def test_a_later_attempt_of_a_session_that_is_not_known_is_refused(site):
    with raised(Refused, "attempt-unknown-session"):
        site.memory.begin(offer(attempt=2), LIMITS)
    site.memory.begin(offer(), LIMITS)


def test_an_attempt_in_which_the_parties_met_is_not_offered_again(site):
    session = site.memory.begin(offer(), LIMITS)
    site.memory.begin(offer(), LIMITS)  # nobody met yet
    session.meet(1)
    session.meet(3)
    for attempt in (1, 2, 3):
        site.restart()
        with raised(Refused, "attempt-already-met", naming=[attempt]):
            site.memory.begin(offer(attempt=attempt), LIMITS)
    assert site.memory.begin(offer(attempt=4), LIMITS).standing.attempt == 3


def test_a_request_of_the_analyst_is_for_one_session(site):
    site.memory.begin(offer("s", request=b"nonce"), LIMITS).end("")
    site.restart()
    with raised(Refused, "request-already-used"):
        site.memory.begin(offer("t", request=b"nonce"), LIMITS)
    site.memory.begin(offer("t", request=b"other"), LIMITS)
    with raised(Refused, "session-request"):
        site.memory.begin(offer("t", request=b"third"), LIMITS)
    for name in ("u", "v"):  # where nothing is signed
        site.memory.begin(offer(name), LIMITS)


def test_a_dataset_has_as_many_sessions_as_the_policy_says(site):
    limits = Limits(max_sessions=3)
    for number in range(3):
        met(site, f"{number}", limits=limits).end("")
    site.restart()
    with raised(Refused, "policy-max-sessions"):
        site.memory.begin(offer("fourth"), limits)
    site.memory.begin(offer("fourth"), LIMITS)


def test_sessions_that_never_began_are_counted_apart(site):
    """Another site refused them, say: they use up nothing of max_sessions, but there is an end to them."""
    limits = Limits(max_sessions=1)
    for number in range(MAX_OFFERS):
        site.memory.begin(offer(f"{number}"), limits).end("party north left")
    with raised(Refused, "offers-exceeded", naming=[MAX_OFFERS]):
        site.memory.begin(offer("one more"), limits)


def test_offers_that_never_began_lock_a_dataset_for_a_while(site):
    for number in range(MAX_OFFERS):
        site.days = OFFER_DAYS * number / MAX_OFFERS
        site.memory.begin(offer(f"{number}"), LIMITS).end("party south refuses")
    site.restart()
    with raised(Refused, "offers-exceeded"):
        site.memory.begin(offer("within the time"), LIMITS)
    site.days = OFFER_DAYS + 0.01
    site.memory.begin(offer("in place of the oldest"), LIMITS)
    with raised(Refused, "offers-exceeded", naming=[MAX_OFFERS]):
        site.memory.begin(offer("beside it"), LIMITS)


def test_offers_of_one_analyst_lock_no_other_out(site):
    for number in range(MAX_OFFERS):
        signed = offer(f"{number}", request=bytes([number]), analyst="mal")
        site.memory.begin(signed, LIMITS).end("party south refuses")
    site.restart()
    with raised(Refused, "offers-exceeded", naming=[MAX_OFFERS]):
        site.memory.begin(offer("again", request=b"again", analyst="mal"), LIMITS)
    site.memory.begin(offer("another's", request=b"other", analyst="ann"), LIMITS)


def test_a_clock_that_was_put_back_forgets_no_offer(site):
    site.days = 100.0
    for number in range(MAX_OFFERS):
        site.memory.begin(offer(f"{number}"), LIMITS)
    site.days = 1.0
    with raised(Refused, "offers-exceeded"):
        site.memory.begin(offer("one more"), LIMITS)


def test_sessions_that_were_all_offered_first_meet_within_max_sessions(site):
    """An aggregator that lets none begin before all are taken has no more of them."""
    limits = Limits(max_sessions=2)
    sessions = [site.memory.begin(offer(f"{number}"), limits) for number in range(4)]
    for session in sessions[:2]:
        session.meet(1)
    for session in sessions[2:]:
        with raised(Refused, "policy-max-sessions"):
            session.meet(1)
    sessions[0].meet(2)
    site.restart()
    assert site.memory.begin(offer("1", attempt=2), limits).standing.attempt == 1
    with raised(Refused, "policy-max-sessions"):
        site.memory.begin(offer("3"), limits).meet(1)


SHOWN = "fewer than {} of them"


@pytest.mark.parametrize(
    "parties", [FIVE[:3], FIVE, (*FIVE[:3], "x")], ids=["one less", "one more", "another"]
)
def test_a_group_that_differs_by_few_is_refused(site, parties):
    """{a, b, c, d} and {a, b, c} show d; with {a, b, c, x}, x may collude and add back its own."""
    met(site, "s").end("it failed")
    site.restart()
    with pytest.raises(Refused, match=SHOWN.format(3)) as refusal:
        site.memory.begin(offer("t", agreed(parties)), LIMITS)
    assert all(name not in refusal.value.public for name in ("west", "centre", "x"))
    site.memory.begin(offer("same group", agreed(max_depth=2)), LIMITS)
    site.memory.begin(offer("allowed", agreed(parties)), Limits(similar_groups=True))


def test_a_group_that_differs_by_enough_is_taken(site):
    met(site, "s")
    met(site, "t", agreed(("north", "far", "away", "off", "out")))


def test_the_most_that_may_collude_in_either_session_count(site):
    met(site, "s", agreed((*FIVE, "far"), colluding=3))
    for colluding in (0, 1, 3):
        with pytest.raises(Refused, match=SHOWN.format(5)):
            site.memory.begin(offer("t", agreed(FIVE[:3], colluding=min(colluding, 1))), LIMITS)


def test_three_groups_are_looked_at_together(site):
    """Each two differ by enough, and the sum of two less the third is a's own, whose site knows all three."""
    a, b, c, d, e, f, g = "abcdefg"
    first, second = (a, b, c, d, e, f, g), (a, b, c, d)
    third = (a, e, f, g)
    for name, group in (("s", first), ("t", second)):
        met(site, name, agreed(group, colluding=0))
    with pytest.raises(Refused, match=SHOWN.format(2)):
        site.memory.begin(offer("u", agreed(third, colluding=0)), LIMITS)


SEVEN = "abcdefg"


def without(*absent, parties=SEVEN):
    """Terms by which some parties lack a column each."""
    columns = [f"x{number}" for number in range(len(absent))]
    lacks = {party: [x for x, who in zip(columns, absent, strict=True) if party in who] for party in parties}
    lacks = {party: names for party, names in lacks.items() if names}
    own = {"label": "y", "numeric": ["age", *columns], "absent": lacks}
    return agreed(parties, columns=own, colluding=0)


def test_absent_columns_make_groups_of_a_session(site):
    """The sums over a column are over those that have it: two sessions that differ in them are subtracted."""
    met(site, "s", without("abc"))
    site.restart()
    for number, same in enumerate((without("abc"), without())):
        site.memory.begin(offer(f"same {number}", same), LIMITS)
    with raised(Refused, "groups-reveal-parties", naming=["d"]):
        site.memory.begin(offer("u", without("abcd")), LIMITS)
    site.memory.begin(offer("v", without("cdef")), LIMITS)
    site.memory.begin(offer("w", without("abcd")), Limits(similar_groups=True))


def test_groups_of_one_session_are_its_partys_own_decision(site):
    """It has them in its terms: min_parties of the policy counts them (tests/runtime/site/test_policy.py)."""
    met(site, "s", without())
    met(site, "t", without("a"))
    met(site, "u", without("a"))
    with raised(Refused, "groups-reveal-parties", "groups-too-many"):
        site.memory.begin(offer("v", without("b")), LIMITS)


def test_more_groups_than_can_be_looked_at(site):
    for number in range(MAX_GROUPS):
        met(site, f"{number}", agreed(("north", *(f"{number} {other}" for other in range(5)))))
    with raised(Refused, "groups-too-many", naming=[MAX_GROUPS]):
        site.memory.begin(offer("more", agreed(("north", *(f"more {other}" for other in range(5))))), LIMITS)


def test_a_session_that_nobody_met_in_stands_in_no_groups_way(site):
    site.memory.begin(offer("s", agreed(FIVE[:3])), LIMITS)
    met(site, "t")
    site.restart()
    with pytest.raises(Refused, match=SHOWN.format(3)):  # but it cannot meet after that
        site.memory.begin(offer("s", agreed(FIVE[:3])), LIMITS).meet(1)


def test_a_group_under_plain_is_not_compared(site):
    met(site, "s", agreed(protection="plain"))
    met(site, "t", agreed(FIVE[:3]))
    site.memory.begin(offer("u", agreed(FIVE, protection="plain")), LIMITS)


PREDICTED = {
    "columns": {"label": "y", "numeric": ["age", "dose"], "row_id": "id", "held": {"north": ["age"]}},
    "protection": "paillier",
    "predict_with": "0" * 64,
}


def predicting(rows, label_holder="south"):
    """Terms by which north, or south, helps the other to predict rows."""
    (helper,) = {"north", "south"} - {label_holder}
    columns = {**PREDICTED["columns"], "held": {helper: ["age"]}}
    settings = {**PREDICTED, "columns": columns, "label_holder": label_holder, "predict_rows": rows}
    return agreed(("north", "south"), **settings)


def test_predicted_rows_of_all_sessions_are_bounded(site):
    limits = Limits(max_predicted_rows=1000)
    for name, rows in (("s", 600), ("t", 300)):
        met(site, name, predicting(rows), limits).end("")
    site.restart()
    sentence = (
        "party north refuses: its policy has max_predicted_rows = 1000, but it has already helped to "
        "predict 900 rows, and this session has 101 more; the person responsible for its rows can raise"
    )
    with pytest.raises(Refused, match=re.escape(sentence)):
        site.memory.begin(offer("u", predicting(101)), limits)
    met(site, "u", predicting(100), limits)
    with raised(Refused, "policy-max-predicted-rows"):
        site.memory.begin(offer("v", predicting(1)), LIMITS)


def test_predictions_that_began_together_are_charged_as_the_parties_meet(site):
    limits = Limits(max_predicted_rows=1000)
    first, _ = (site.memory.begin(offer(name, predicting(600)), limits) for name in "st")
    first.meet(1)
    site.restart()
    with raised(Refused, "policy-max-predicted-rows"):
        site.memory.begin(offer("t", predicting(600)), limits).meet(1)
    site.memory.begin(offer("s", predicting(600), attempt=2), limits).meet(2)  # the same rows, once


def by_columns(**settings):
    """Terms under which north and south hold different columns: 3 splits a round at most."""
    columns = {"label": "y", "numeric": ["age", "dose"], "row_id": "id", "held": {"south": ["dose"]}}
    apart = {"columns": columns, "label_holder": "north", "protection": "plain", "max_depth": 2, "rounds": 10}
    return agreed(("north", "south"), **{**apart, **settings})


def test_splits_of_all_sessions_are_bounded(site):
    limits = Limits(max_splits=100)
    met(site, "s", by_columns(), limits).end("")
    met(site, "t", by_columns(alone_rounds=1), limits).end("")
    met(site, "rows", agreed(), limits)
    site.memory.begin(offer("never", by_columns()), limits)
    site.restart()
    sentence = (
        "party north refuses: its policy has max_splits = 100, but earlier sessions may have made 57 splits "
        "on its columns, and this one may make 45 more; the person responsible for its rows can raise"
    )
    with pytest.raises(Refused, match=re.escape(sentence)):
        site.memory.begin(offer("u", by_columns(rounds=15)), limits)
    met(site, "u", by_columns(rounds=14), limits)
    with raised(Refused, "policy-max-splits"):
        site.memory.begin(offer("never", by_columns()), limits).meet(1)
    site.memory.begin(offer("s2", predicting(10)), Limits(max_predicted_rows=10, max_splits=1)).meet(1)


def test_a_session_that_goes_on_is_charged_once(site):
    limits = Limits(max_splits=30)
    met(site, "s", by_columns(), limits)
    site.restart()
    site.memory.begin(offer("s", by_columns(), attempt=2), limits).meet(2)


def test_a_site_predicts_its_own_rows_as_it_likes(site):
    for name in "st":
        met(site, name, predicting(10**7, label_holder="north"))


def test_predictions_are_no_trainings(site):
    """They count neither against max_sessions nor as groups, and trainings do not stop them."""
    limits = Limits(max_sessions=1, max_predicted_rows=1000)
    for number in range(3):
        met(site, f"before {number}", predicting(100), limits)
    met(site, "training", limits=limits)
    site.restart()
    with raised(Refused, "policy-max-sessions"):
        site.memory.begin(offer("another"), limits)
    met(site, "after", predicting(100), limits)


def evaluating(rows, label_holder="south"):
    return predicting(rows, label_holder).changed(program="evaluate", on_loss="stop")


def test_evaluations_are_charged_as_predictions_where_they_help(site):
    limits = Limits(max_sessions=1, max_predicted_rows=1000)
    met(site, "s", evaluating(600), limits).end("")
    met(site, "t", predicting(300), limits).end("")
    site.restart()
    with raised(Refused, "policy-max-predicted-rows"):
        site.memory.begin(offer("u", evaluating(101)), limits)
    met(site, "u", evaluating(100), limits)


def test_evaluations_are_sessions_where_the_labels_are(site):
    """Each opens sums over rows of the label holder."""
    limits = Limits(max_sessions=2)
    met(site, "s", evaluating(600, "north"), limits).end("")
    met(site, "predicted", predicting(600, "north"), limits)
    met(site, "t", limits=limits)
    site.restart()
    with raised(Refused, "policy-max-sessions"):
        site.memory.begin(offer("u", evaluating(600, "north")), limits)


def test_what_is_refused_leaves_no_trace(site):
    met(site, "s")
    for number in range(5):
        with pytest.raises(Refused):
            site.memory.begin(offer(f"{number}", attempt=2), LIMITS)
    site.memory.begin(offer("t"), Limits(max_sessions=2))


# ---- what is known ----------------------------------------------------------------------------------


def test_a_session_stands_where_it_stood(site):
    session = site.memory.begin(offer(), LIMITS)
    assert session.standing == Standing()
    session.meet(1)
    for turn in (4, 5, 6):
        session.ask(question(turn, of_tree=turn != 6), base=place(4), reached=place(turn + 1))
    session.help(7, FIVE[:3])
    session.sign()
    expected = Standing(
        attempt=1,
        base=place(4),
        reached=place(7),
        questions=(question(4), question(5), question(6, of_tree=False)),
        helped=(7, FIVE[:3]),
        signed=True,
    )
    assert session.standing == expected
    site.restart()
    assert site.memory.begin(offer(attempt=2), LIMITS).standing == expected


def test_the_questions_of_the_tree_before_are_dropped(site):
    session = site.memory.begin(offer(), LIMITS)
    for turn in (1, 2, 3):
        session.ask(question(turn), base=NOWHERE, reached=place(turn + 1))
    session.ask(question(4), base=place(4), reached=place(5))
    site.restart()
    session = site.memory.begin(offer(), LIMITS)
    assert session.standing.questions == (question(4),)
    assert session.standing.base == place(4)


def test_a_question_that_is_asked_again_is_there_once(site):
    session = site.memory.begin(offer(), LIMITS)
    for turn in (1, 2, 3, 2):
        session.ask(question(turn), base=NOWHERE, reached=place(4))
    cut_short = replace(question(2), digest=b"end" * 10 + b"!!", of_tree=False)
    session.ask(cut_short, base=NOWHERE, reached=place(4))
    site.restart()
    asked = site.memory.begin(offer(), LIMITS).standing.questions
    assert asked == (question(1), cut_short, question(3))


def test_a_session_has_a_secret_of_its_own_that_stays(site):
    secrets = {name: site.memory.begin(offer(name), LIMITS).secret for name in "st"}
    site.restart()
    assert {name: site.memory.begin(offer(name), LIMITS).secret for name in "st"} == secrets
    assert len({*secrets.values()}) == 2
    assert {len(secret) for secret in secrets.values()} == {32}


def test_sessions_stand_apart(site):
    first, second = (site.memory.begin(offer(name), LIMITS) for name in "st")
    first.ask(question(1), base=NOWHERE, reached=place(2))
    second.meet(5)
    second.end("over")
    site.restart()
    standing = site.memory.begin(offer("s"), LIMITS).standing
    assert (standing.attempt, standing.questions) == (0, (question(1),))


def test_a_refusal_names_the_party_and_is_one_line(site):
    site.memory.begin(offer("a\nname"), LIMITS).end("")
    with pytest.raises(Refused) as error:
        site.memory.begin(offer("a\nname"), LIMITS)
    assert re.fullmatch(r"party north has already ended session a\\nname; .*", str(error.value))
