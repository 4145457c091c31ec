"""A query that lacks a rule cannot be made; one that lets a rule be is refused where answers get noise."""

from dataclasses import dataclass

import pytest
from inprocess import terms_of
from liar import X
from raised import raised

from fedboost.boosting.queries.base import BaseQuery, BeforeTrees
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import Refused
from fedboost.protocol.contracts import NOWHERE


@dataclass(frozen=True)
class Forgetful(BeforeTrees, BaseQuery):
    """A query with no rules at all."""

    rows: int = 1


@dataclass(frozen=True)
class Usual(BeforeTrees, BaseQuery):
    """A query with the rules that each must have."""

    rows: int = 1
    cells = 1
    cell_bits = 8
    description = "nothing"

    def check_terms(self, terms):
        pass

    @classmethod
    def max_count(cls, terms):
        return 1

    def check_order(self, terms, state):
        pass

    def applied_to(self, state):
        return state


RULES = ["cells", "cell_bits", "max_count", "check_terms", "check_order", "applied_to"]


@pytest.mark.parametrize("rule", RULES)
def test_a_query_without_a_rule_cannot_be_asked(rule):
    kind = type("Lacking", (Usual,), {rule: getattr(BaseQuery, rule)})
    with pytest.raises(TypeError, match=rule):
        kind()
    with pytest.raises(TypeError, match="abstract"):
        Forgetful()


def test_with_noise_a_query_is_refused_unless_it_says_otherwise():
    noise = {"epsilon": 8.0, "delta": 1e-5}
    Usual().check(terms_of(X, 3, protection="masked"))
    with raised(Refused, "query-noise"):
        Usual().check(terms_of(X, 3, protection="masked", ranges=[(-3, 3)] * 2, noise=noise))
    assert Usual().release(terms_of(X, 3)) is None
    assert INITIAL_STATE.after(Usual()) == INITIAL_STATE


def test_every_training_begins_where_a_site_remembers_nothing():
    assert INITIAL_STATE.position == NOWHERE
