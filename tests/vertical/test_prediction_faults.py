"""Something goes wrong while parties predict together: the prediction is the same."""

import itertools
import os
from datetime import UTC, datetime
from functools import cache, partial

import numpy as np
import pytest

from fedboost.boosting.programs import initialisation
from fedboost.holders.columns import holder_for
from fedboost.privacy.identity import in_memory
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from tests.helpers.faults_apart import TIMES
from tests.helpers.predictions import due, models_of, tables_of, terms_for
from tests.vertical.test_faults import WRONG, Matching

LAYOUT, SETTING = "three holders", "classes"


@cache
def apart():
    tables = tables_of(LAYOUT)
    terms = terms_for(LAYOUT, SETTING, tables, **TIMES, on_loss="wait")
    return terms, tables, models_of(terms, SETTING)


class Predicting(Matching):
    """Nothing goes wrong by itself. made: the holders of the label holder."""

    def choose(self, seed):
        self.aim, self.made = 0.0, []
        terms, tables, models = apart()
        now = datetime.now(UTC)
        signers, roots = in_memory(terms.parties, now)
        return terms, {
            name: Site(
                name,
                self.keeping(name, to_shard(tables[name], terms, name), models[name]),
                os.urandom,
                Credentials(signers[name], roots, (), lambda: now),
            )
            for name in terms.parties
        }

    def keeping(self, name, shard, model):
        make = holder_for(lambda terms: shard, name, model_of=lambda terms: model)

        def hold(terms, secret):
            holder = make(terms, secret)
            if name == "bank":
                self.made.append(holder)
            return holder

        return hold

    @property
    def program(self):
        return initialisation.predict

    def holders(self):
        return {}

    def check(self, session):
        """Sums are not those of anybody's rows."""

    def deliver_until(self, number):
        """So many messages arrive. False if the session is over before that."""
        for _ in range(number):
            if self.over():
                return False
            self.deliver(*self.draw.choice(self.lines()))
        return not self.over()


def goes_wrong(seed, number, what):
    """The session in which this goes wrong once, after so many messages; None if it is over by then."""
    world = Predicting(seed)
    if not world.deliver_until(number):
        return None
    parties = sorted(world.sites)
    world.go_wrong(what, parties[number % len(parties)])
    world.calm()
    assert world.session.phase == "done", world.session.error
    predictions = [holder.prediction for holder in world.made if holder.prediction is not None]
    margins, known = due(LAYOUT, SETTING, apart()[1])
    assert predictions
    for prediction in predictions:
        assert prediction.margins.tobytes() == margins.tobytes()
        assert np.array_equal(prediction.known, known)
    return world


@pytest.mark.parametrize("number", [9, 22, 36, 50])
@pytest.mark.parametrize("what", WRONG)
def test_whatever_goes_wrong_the_prediction_is_the_same(number, what):
    assert goes_wrong(0, number, what)


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_at_every_message(what):
    worlds = map(partial(goes_wrong, 1, what=what), itertools.count(0, 3))
    assert sum(1 for _ in itertools.takewhile(lambda world: world is not None, worlds)) > 15
