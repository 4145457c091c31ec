"""Words for people: none is missing, and each fits where it stands."""

import re
from pathlib import Path
from typing import get_args

import pytest
from rich.cells import cell_len

import fedboost.views
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.columns import SUMMARY_BY_PARTY
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.errors import printable
from fedboost.privacy.protections import PROTECTIONS
from fedboost.results.audit import UNASKED
from fedboost.results.privacy import UNITS
from fedboost.runtime.site.policy import PROTECTS, Policy
from fedboost.terms import hiding
from fedboost.views.approval import NO_METRICS, PLACEMENTS, QUERIES, RELAXED
from fedboost.views.document import safe
from fedboost.views.words import delimited, duration, entry, paragraph

WIDTH = 43
"""Columns of the words for an answer in an audit."""


def test_every_query_has_a_sentence():
    others = {BY_PARTY, EVALUATION_BY_PARTY, SUMMARY_BY_PARTY, *UNASKED}
    assert set(QUERIES) == {query.__name__ for query in get_args(Query)} | others
    assert all(0 < len(words) < WIDTH for words in (*QUERIES.values(), NO_METRICS))
    assert len({*QUERIES.values(), NO_METRICS}) == len(QUERIES) + 1


def test_protections_releases_of_noise_and_rules_have_words():
    assert all(protection.aggregator_observes for protection in PROTECTIONS.values())
    counts = {hiding.CUT_POINTS, hiding.SUMMARY, hiding.SCORES, hiding.BINS}
    assert set(UNITS) == counts | {hiding.LEVELS, hiding.START, hiding.TREES}
    assert set(PLACEMENTS) == set(get_args(hiding.Noise.model_fields["placement"].annotation))
    assert {key for key, _ in RELAXED} <= set(Policy.model_fields) & set(PROTECTS)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "0.50 s"), (60, "60 s"), (300, "5.0 min"), (9000, "2.5 h"), (900_000, "10.4 days")],
)
def test_times_have_the_unit_that_people_use(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    "file", sorted(Path(fedboost.views.__file__).parent.glob("*.py")), ids=lambda f: f.name
)
def test_people_read_nothing_and_print_nothing(file):
    text = file.read_text()
    assert not re.search(r"\b(print|open)\(|fedboost\.runtime|Console\(|sys\.std", text)


@pytest.mark.parametrize("draw", [lambda name: entry("label", name), lambda name: paragraph(name)])
@pytest.mark.parametrize("count", range(20, 45))
def test_wide_characters_leave_no_line_to_the_terminal_to_break(draw, count):
    lines = draw("漢" * count + " analyst      marie: gets nothing, ever" * 3).splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    assert "".join(lines).count("漢") == count


@pytest.mark.parametrize(
    "name", ["age\u3164", "\u115f", "age\ufe0f", "a\u034fge", "age\u2800", "a\U000e0100"]
)
def test_characters_without_ink_are_seen(name):
    assert name.isprintable()
    for drawn in (printable(name), delimited(name), safe(name)):
        assert drawn.isascii()
        assert "\\" in drawn
