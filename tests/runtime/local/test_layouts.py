"""Layouts over links: round trips, bytes and the time of machines add up."""

import pytest
from raised import raised

from fedboost.errors import ConfigError
from fedboost.results.model import Estimate
from fedboost.runtime.local.estimate import Link, in_one_place, over_link
from fedboost.terms.terms import Terms

PLAIN = Estimate(
    protection="plain",
    seconds_a_round=0.5,
    seconds=50.0,
    megabytes=2.0,
    round_trips=7.0,
    seconds_apart=0.25,
    rows=1_000_000,
    parties=4,
)
TERMS = Terms.read({"columns": {"label": "y", "weight": "w", "numeric": ["a", "b"]}, "rounds": 10})


def test_a_round_is_its_round_trips_its_bytes_and_the_time_of_the_machines():
    over = over_link("histograms", PLAIN, 10, Link.of(50.0, 8.0))
    assert over.seconds_a_round == pytest.approx(7 * 0.050 + 2.0 + 0.25)
    assert over.seconds == pytest.approx(10 * over.seconds_a_round)
    assert over.megabytes == 20.0
    assert over_link("histograms", PLAIN, 10, Link.of(0.0, None)).seconds_a_round == 0.25


def test_rows_are_shipped_once():
    """1,000,000 rows of 4 numbers of 4 bytes, a quarter from each of 4 parties."""
    over = in_one_place(TERMS, PLAIN, Link.of(100.0, 8.0))
    assert over.megabytes == 4.0
    assert over.seconds == pytest.approx(0.1 + 4.0 + 10 * over.seconds_a_round)
    assert 0 < over.seconds_a_round < PLAIN.seconds_a_round  # without messages


def test_links_that_cannot_be():
    assert Link.of(None, None) is None
    for rtt, bandwidth in (
        (-1.0, None),
        (float("nan"), 1.0),
        (1e9, 1.0),
        (1.0, 0.0),
        (1.0, float("inf")),
        (1.0, 1e-300),
    ):
        with raised(ConfigError, "estimate-bandwidth-range", "estimate-rtt-range"):
            Link.of(rtt, bandwidth)
