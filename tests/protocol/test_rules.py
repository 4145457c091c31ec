"""The rules of both ends: one for each phase and event, and docs/protocol.md has them."""

from pathlib import Path
from runpy import run_path
from typing import get_args

from fedboost.protocol import aggregator, party
from fedboost.protocol.messages import (
    PHASES,
    Connected,
    Disconnected,
    FromParty,
    Summed,
    Tick,
    ToParty,
    Violation,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_the_aggregator_has_a_rule_for_each_event_in_each_phase():
    events = {*get_args(FromParty), Connected, Disconnected, Violation, Tick, Summed}
    assert set(aggregator.RULES) == {(phase, event) for phase in PHASES for event in events}
    assert all(rule.handler.__doc__ for rule in aggregator.RULES.values())


def test_a_party_has_a_rule_for_each_message_in_each_phase():
    assert set(party.RULES) == {(phase, message) for phase in party.PHASES for message in get_args(ToParty)}
    assert all(handler.__doc__ for handler in party.RULES.values())


def test_the_documentation_has_the_rules():
    """Written by `make reference`."""
    made = run_path(str(DOCS / "make" / "rules.py"))["reference"]()
    assert made in (DOCS / "protocol.md").read_text()
