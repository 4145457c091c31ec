"""The display of a process on its terminal: what is drawn of which facts, at which size."""

import io
import math

import pytest
from rich.console import Console
from screens import widest
from sites import terms

from fedboost.people.live import (
    ANSWERED,
    AWAITED,
    AWAY,
    BLOCKS,
    Curve,
    LiveFacts,
    LiveParty,
    blocks,
    last_line,
    live,
    names,
    passed,
    time_left,
    watched,
)

HOSTILE = "[b]n\x1b[2J\n"


def facts(parties=3, rounds=200, away=(), awaited=(), name="site-{}"):
    """A session after `rounds` of 200 rounds, with parties that are away or awaited, by their numbers."""
    listed = []
    for number in range(parties):
        state = AWAY if number in away else AWAITED if number in awaited else ANSWERED
        note = {AWAY: "since 16:20", AWAITED: "14 s", ANSWERED: ""}[state]
        listed.append(LiveParty(name.format(number), state, note, 1_200_000, 340_000))
    return LiveFacts(
        "aggregator on 127.0.0.1:7070",
        f"{parties} parties connected, up 3.2 h",
        "session-1f3a of marie, masked",
        rounds,
        200,
        Curve("validation-logloss", tuple(math.exp(-number / 50) for number in range(rounds)))
        if rounds
        else None,
        (1.5,) * rounds,
        3_600_000,
        1_020_000,
        "turn 712",
        names(name.format(number) for number in (*away, *awaited)),
        "slowest: site-1 (the others waited 12 s)",
        tuple(listed),
    )


def drawn(shown, width=80, height=24):
    """The lines of a display on a terminal of this size."""
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(live(shown, width, height))
    return console.file.getvalue().splitlines()


def test_a_session_of_three_parties():
    lines = [line.rstrip() for line in drawn(facts(rounds=120, away=[1], awaited=[2]))]
    assert lines[0] == "── aggregator on 127.0.0.1:7070 ── 3 parties connected, up 3.2 h"
    assert lines[1] == "session-1f3a of marie, masked"
    assert lines[2].startswith("round 120/200 ━")
    assert lines[2].endswith("1.50 s a round, about 2.0 min left")
    assert lines[3].startswith(f"validation-logloss {math.exp(-119 / 50):.5f} {BLOCKS[-1]}")
    assert lines[3].endswith(BLOCKS[0])
    assert lines[4] == "in 3.6 MB, out 1.0 MB, slowest: site-1 (the others waited 12 s)"
    assert lines[5] == "waiting for site-1, site-2"
    assert lines[6:] == [
        "site-0  answered           in 1.2 MB  out 340.0 kB",
        "site-1  away, since 16:20  in 1.2 MB  out 340.0 kB",
        "site-2  awaited, 14 s      in 1.2 MB  out 340.0 kB",
    ]


@pytest.mark.parametrize("parties", [1, 3, 186])
@pytest.mark.parametrize(("width", "height"), [(120, 50), (80, 24), (60, 24), (60, 10), (40, 6), (12, 3)])
def test_a_display_fits_its_terminal_whatever_the_session(parties, width, height):
    for shown in (facts(parties, 200, away=[0], awaited=range(1, parties)), facts(parties, 0)):
        lines = drawn(shown, width, height)
        assert widest("\n".join(lines)) <= width
        assert len(lines) <= max(min(16, height - 4), 1)


def test_of_many_parties_those_that_need_attention_come_first_and_the_others_are_counted():
    lines = drawn(facts(186, away=[150], awaited=[7, 90]))
    listed = [line.split() for line in lines[6:]]
    assert [words[:2] for words in listed[:3]] == [
        ["site-150", "away,"],
        ["site-7", "awaited,"],
        ["site-90", "awaited,"],
    ]
    assert len(lines) == 16
    assert lines[-1].split() == ["and", "177", "others", "177", "answered"]


@pytest.mark.parametrize(("height", "kept"), [(6, ["round", "waiting"]), (5, ["round"])])
def test_a_low_terminal_keeps_rounds_and_who_is_waited_for(height, kept):
    assert [line.split()[0] for line in drawn(facts(away=[0]), 60, height)] == kept


def test_names_cannot_write_on_the_terminal():
    shown = facts(3, away=[0], name=HOSTILE + "{}")
    lines = drawn(shown, 200)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "[b]n" in text  # nor is it markup
    assert len([line for line in lines if "away" in line]) == 1
    assert "\x1b" not in last_line(shown)
    assert "\n" not in last_line(shown)


def test_a_wide_name_takes_its_columns():
    lines = drawn(facts(3, away=[0], name="病院" * 9 + "{}"), 60)
    assert widest("\n".join(lines)) <= 60


@pytest.mark.parametrize(
    ("values", "width", "text"),
    [
        ((), 10, ""),
        ((1.0,), 10, "▅"),
        ((1.0, 1.0, 1.0), 10, "▅▅▅"),
        ((0.0, 1.0), 10, "▁█"),
        (tuple(range(8)), 8, BLOCKS),
        (tuple(range(16)), 8, BLOCKS),
        ((0.0, math.nan, 1.0), 3, "▁ █"),
        ((math.inf, math.nan), 2, "  "),
        ((-1e308, 1e308), 2, "▁█"),
        ((1e308, 1e308, 0.0, 0.0), 2, "█▁"),
        ((1.0, 2.0), 0, ""),
    ],
)
def test_blocks_of_values(values, width, text):
    assert blocks(values, width) == text


def test_no_time_is_left_of_short_trainings_and_after_the_first_round():
    assert time_left([200.0], 10) == ""
    assert time_left([200.0, 1.0], 10) == ""
    assert time_left([200.0, 60.0], 3) == "about 3.0 min left"
    assert [passed(seconds) for seconds in (0.9, 9.9, 12.3, 300)] == ["0 s", "9 s", "12 s", "5.0 min"]


def test_the_metric_that_is_watched_is_the_last_one_on_validation_rows():
    agreed = terms(["north"], eval_metric=["auc", "logloss"], validation_fraction=0.3)
    rows = [{"auc": 0.5, "logloss": value, "validation-logloss": value + 1} for value in (0.4, 0.2)]
    assert watched(rows, agreed) == Curve("validation-logloss", (1.4, 1.2))
    assert watched([{"logloss": 0.4}], agreed) == Curve("logloss", (0.4,))
    assert watched([{}], agreed) is None


def test_the_best_candidate_is_watched_where_candidates_are_tried():
    settings = {"program": "tune", "validation_fraction": 0.3, "rounds": 4}
    agreed = terms(["north"], candidates=[{"max_depth": 2}, {"max_depth": 3}], **settings)
    rows = [{"validation-0/logloss": 0.5, "validation-1/logloss": 0.4}, {"validation-0/logloss": 0.3}]
    assert watched(rows, agreed) == Curve("best logloss", (0.4, 0.3))


def test_as_many_names_as_fit():
    assert names([]) == ""
    assert names(["north", "south"]) == "north, south"
    assert names([f"site-{number}" for number in range(100)], 20) == "site-0, site-1 and 98 more"
    assert names(["north", "south"], 3) == "2 parties"


def test_the_last_line():
    ends = last_line(facts(rounds=120, away=[1]))
    assert ends == (
        "aggregator on 127.0.0.1:7070: session-1f3a of marie, masked, round 120/200, "
        f"validation-logloss {math.exp(-119 / 50):.5f}, 3.6 MB in, 1.0 MB out, waiting for site-1"
    )
    assert last_line(LiveFacts("party north", "connected", now="no session so far")) == (
        "party north: no session so far"
    )
