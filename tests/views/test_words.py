"""Words for people: none is missing, and each fits where it stands."""

import re
from pathlib import Path
from typing import get_args

import pytest

import fedboost.views
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.boosting.queries.union import Query
from fedboost.privacy.protections import PROTECTIONS
from fedboost.results.audit import UNASKED
from fedboost.results.privacy import UNITS
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.policy_keys import PROTECTS
from fedboost.terms import hiding
from fedboost.views.approval import NO_METRICS, PLACEMENTS, QUERIES, RELAXED

WIDTH = 43
"""Columns of the words for an answer in an audit."""


def test_every_query_has_a_sentence():
    others = {BY_PARTY, EVALUATION_BY_PARTY, *UNASKED}
    assert set(QUERIES) == {query.__name__ for query in get_args(Query)} | others
    assert all(0 < len(words) < WIDTH for words in (*QUERIES.values(), NO_METRICS))
    assert len({*QUERIES.values(), NO_METRICS}) == len(QUERIES) + 1


def test_every_protection_has_a_sentence():
    assert all(protection.aggregator_observes for protection in PROTECTIONS.values())


def test_every_release_of_noise_has_a_unit():
    assert set(UNITS) == {hiding.CUT_POINTS, hiding.LEVELS, hiding.START, hiding.TREES, hiding.SUMMARY}


def test_every_placement_of_noise_has_a_sentence():
    assert set(PLACEMENTS) == set(get_args(hiding.Placement))


def test_rules_that_are_relaxed_are_rules():
    assert {key for key, _ in RELAXED} <= set(Policy.model_fields) & set(PROTECTS)


@pytest.mark.parametrize(
    "file", sorted(Path(fedboost.views.__file__).parent.glob("*.py")), ids=lambda f: f.name
)
def test_people_read_nothing_and_print_nothing(file):
    text = file.read_text()
    assert not re.search(r"\b(print|open)\(|fedboost\.runtime|Console\(|sys\.std", text)
