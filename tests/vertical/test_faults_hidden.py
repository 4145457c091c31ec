"""Whatever goes wrong in a session whose gradients are hidden, the model is the same or somebody is named."""

import pytest
from apart_sessions import Apart
from columns_apart import pooled, train_pooled
from consortium import installed

if not installed("paillier"):
    pytest.skip("needs the extra paillier", allow_module_level=True)

from tests.helpers.faults_hidden import HIDDEN, play, two_keys

FAST, SEEDS = 3, 9
SMALL = {"rounds": 1, "max_depth": 2, "max_bin": 4}
ROWS = 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST))
def test_a_seed(seed):
    play(seed)


@pytest.mark.slow
def test_seeds():
    outcomes = [play(seed) for seed in range(FAST, SEEDS)]
    assert sum(outcome.model is not None for outcome in outcomes) > len(outcomes) // 2


def dies_at(party, number):
    with two_keys():
        session = Apart("two holders", table=pooled(ROWS), **HIDDEN, **SMALL, on_loss="wait")
        return session.dies_at(party, number)


@pytest.mark.slow
@pytest.mark.parametrize("party", ["bank"])
def test_a_party_may_die_at_every_message(party):
    due, number = train_pooled(pooled(ROWS), **SMALL, min_child_weight=0).model.booster, 0
    while apart := dies_at(party, number + 1):
        number += 1
        assert apart.session.phase == "done", (number, apart.error)
        assert apart.session.booster == due
    assert number > 8
