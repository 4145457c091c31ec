"""A site's budget: no release is uncharged, none is charged twice, nothing is released beyond it."""

import math
import re

import pytest
from memories import BUDGET, THREE, begun, cost_of, noisy, opened, spend_all
from raised import raised
from sites import bundles_of, consortium, fedboost, in_time, shared_out, terms

from fedboost.errors import ConfigError, Refused
from fedboost.protocol.site import Limits, SessionOffer
from fedboost.results.audit import Released
from fedboost.results.privacy import PrivacyCard
from fedboost.runtime.model import Model
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.memory import read_spent
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.store import NAME
from fedboost.terms.reading import read_model
from fedboost.views.approval import summary


@pytest.fixture
def path(tmp_path):
    return tmp_path / NAME


# ---- the budget -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_when_it_is_offered_with_what_is_left(path):
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", noisy())
        with pytest.raises(Refused) as error:
            begun(memory, "t")
    left = BUDGET.left(cost_of(path))
    assert str(error.value) == (
        "party north: the terms ask for epsilon 1 at delta 1e-05, but its budget for these rows (epsilon 1.2 "
        f"at delta 1e-05) has only {math.floor(left * 1e4) / 1e4:g} left; lower the epsilon of the noise to "
        f"at most {math.floor(left * 1e4) / 1e4:g} at delta 1e-05, unless the site "
        "raises `epsilon` in its policy"
    )
    assert 0.2 < left < 1.0


def test_a_refusal_says_which_epsilon_fits_at_the_delta_of_the_terms(path):
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", noisy())
        asked = noisy(noise={"epsilon": 1.0, "delta": 1e-7})
        with pytest.raises(Refused) as error:
            begun(memory, "t", asked)
        fits = float(re.search(r"to at most (\S+) at delta 1e-07", str(error.value))[1])
        assert fits > BUDGET.left(cost_of(path))
        with pytest.raises(Refused):
            begun(memory, "u", noisy(noise={"epsilon": fits + 0.002, "delta": 1e-7}))
        spend_all(memory, "v", noisy(noise={"epsilon": fits, "delta": 1e-7}))
    assert cost_of(path) <= BUDGET.cost


def test_what_is_left_can_be_spent_to_the_last_and_then_nothing(path):
    with opened(path, budget=BUDGET) as memory:
        sessions, left = 0, 1.0
        while left >= 0.01:
            spend_all(memory, f"s{sessions}", noisy(left))
            sessions, left = sessions + 1, math.floor(BUDGET.left(cost_of(path)) * 1e4) / 1e4
        assert sessions >= 2
        with raised(Refused, "budget-spent"):
            begun(memory, "u", noisy(0.01))
    assert cost_of(path) <= BUDGET.cost


def test_a_session_that_goes_on_needs_only_the_rest_of_its_plan(path):
    agreement = noisy(1.2)
    with opened(path, budget=BUDGET) as memory:
        spend_all(memory, "s", agreement)
    with opened(path, budget=BUDGET) as memory:
        session = spend_all(memory, "s", agreement)
        with raised(Refused, "session-over-plan"):
            session.charge("another", agreement.plan.releases["sums of all rows"].cost)
    assert cost_of(path) <= BUDGET.cost


def test_no_session_is_charged_more_than_its_terms_plan_whether_there_is_a_budget_or_not(path):
    """Else an aggregator that asks again and again would have the model less private than its card says."""
    agreement = noisy()
    with opened(path) as memory:
        session = spend_all(memory, "s", agreement)
        with raised(Refused, "session-over-plan"):
            session.charge("another", agreement.plan.releases["sums of all rows"].cost)
        spend_all(memory, "t", agreement)  # another session


def test_parties_of_one_dataset_draw_noise_of_their_own_in_one_session(path):
    """By the same secret two that hold the same rows would draw the same noise, and be charged for one."""
    agreement = noisy()
    with opened(path) as north, opened(path, party="south") as south:
        sessions = [spend_all(memory, "s", agreement) for memory in (north, south)]
        assert sessions[0].secret != sessions[1].secret
    assert cost_of(path) == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)


def test_parties_of_one_dataset_know_each_others_sessions(path):
    """One session at both of them is one."""
    with opened(path) as north, opened(path, party="south") as south:
        for memory in (north, south):
            memory.begin(SessionOffer("s", noisy(), 1, "ann", b"nonce"), Limits(max_sessions=1)).meet(1)
        with raised(Refused, "policy-max-sessions"):
            south.begin(SessionOffer("t", noisy()), Limits(max_sessions=1))
        begun(south, "t")
        more = noisy(parties=[*THREE, "west"])
        with raised(Refused, "groups-reveal-parties"):
            begun(north, "u", more)
        assert north.sessions == 2


def test_releases_beyond_the_budget_are_refused_one_by_one(path):
    with opened(path, budget=BUDGET) as one, opened(path, budget=BUDGET, party="south") as other:
        agreement = noisy(1.2)
        sessions = begun(one, "s", agreement), begun(other, "t", agreement)
        costs = [release.cost for release in agreement.plan.releases.values() for _ in range(release.times)]
        for number, cost in enumerate(costs):
            sessions[0].charge(f"{number}", cost)
        with raised(Refused, "budget-spent"):
            sessions[1].charge("one", costs[0])


def test_of_two_that_were_admitted_the_later_is_refused_in_the_middle(path):
    with opened(path, budget=BUDGET) as one, opened(path, budget=BUDGET, party="south") as other:
        begun(one, "s")
        begun(other, "t")
        spend_all(one, "s", noisy())
        with pytest.raises(Refused):
            spend_all(other, "t", noisy())
    assert cost_of(path) <= BUDGET.cost


# ---- the policy and the network ---------------------------------------------------------------------


def test_a_budget_refuses_what_has_no_noise_or_a_larger_delta():
    named = {"parties": "any", "columns": "any", "min_rows_per_leaf": 1}
    rules = read_model(Policy, {**named, "epsilon": 3.0, "delta": 1e-6}, "party.toml")
    with pytest.raises(Refused, match=r"policy has epsilon = 3, but the terms have no noise"):
        rules.permit(terms(THREE, protection="masked"), "north")
    with pytest.raises(Refused, match=r"policy has delta = 1e-06, but the noise .* has delta = 1e-05"):
        rules.permit(noisy(), "north")
    rules.permit(noisy(noise={"epsilon": 9.0, "delta": 1e-6}), "north")
    read_model(Policy, named, "party.toml").permit(noisy(), "north")
    assert "epsilon 1 at delta 1e-05" in summary(noisy())


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"epsilon": 3.0}, "epsilon alone does not set a budget: add delta = 1e-5"),
        ({"delta": 1e-5}, "delta alone does not set a budget: add epsilon = 3.0"),
        ({"epsilon": 0, "delta": 1e-5}, "greater than 0"),
        ({"epsilon": 1, "delta": 0.5}, "0.001"),
    ],
)
def test_half_a_budget_is_a_mistake(rules, words):
    with pytest.raises(ConfigError, match=words):
        read_model(Policy, rules, "party.toml")


@pytest.mark.slow
def test_memory_audit_log_and_card_say_the_same(tmp_path):
    tables = shared_out(3)
    state = tmp_path / "c" / "state"

    async def scenario():
        bundles = bundles_of(tmp_path / "keys", THREE)
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name in THREE:
                one.start_party(name, tables[name])
            return [(await one.train(noisy())).model for _ in range(2)]

    models = in_time(scenario())
    card = PrivacyCard.of(models[0].terms).summary
    due = math.fsum(release["cost"] for release in card["releases"] for _ in range(release["times"]))
    assert card["cost"] == pytest.approx(due, rel=1e-12, abs=0)
    assert models[0].fingerprint != models[1].fingerprint  # each session has noise of its own
    for name in THREE:
        spent = read_spent(state / name / NAME)
        events = [entry.event for entry in read_log(state / name / NAME)]
        released = [one for one in events if isinstance(one, Released) and one.cost is not None]
        logged = math.fsum({one.charge: one.cost for one in released}.values())
        assert spent.cost == logged == math.fsum([due, due])
        assert (spent.dataset, spent.sessions, spent.releases) == (name, 2, 8)
    loaded = Model.from_bytes(models[0].to_bytes())
    assert PrivacyCard.of(loaded.terms).summary == card
    assert loaded.to_bytes() == models[0].to_bytes()
    assert b'"fedboost.privacy"' in models[0].to_bytes()
    said = fedboost("audit", state / "north" / NAME).out
    assert f"epsilon {card['epsilon_spent']:.4g} was spent" in said
    assert "sums over the rows in each leaf of a tree" in said
