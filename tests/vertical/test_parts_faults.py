"""Something goes wrong when parties keep their parts and sign: parts are the same, and none is signed that is
not kept."""

from dataclasses import replace

import pytest

import fedboost as fb
from fedboost.runtime.signed_model import PartyModel, trained_model_of
from tests.helpers.faults_apart import apart
from tests.vertical.test_faults import WRONG, Matching

LAYOUT = "three holders"


class Keeping(Matching):
    """Nothing goes wrong by itself; `kept` has the parts as they were kept, party after party."""

    def choose(self, seed):
        self.layout, self.setting, self.aim, self.by_id = LAYOUT, "logistic", 0.0, True
        self.kept = []
        terms, sites = apart(self.layout, self.setting, "wait", True, model="parties")
        return terms, {name: replace(site, keep=self.kept.append) for name, site in sites.items()}

    def deliver_until(self, number):
        """So many messages arrive once parties are asked to sign. False if the session is over before."""
        while self.session.phase != "closing":
            self.deliver(*self.draw.choice(self.lines()))
        for _ in range(number):
            if self.over():
                return False
            self.deliver(*self.draw.choice(self.lines()))
            signed = {name: attest.part for name, attest in self.session.attestations.items()}
            assert {(part.party, part.digest) for part in self.kept} >= {*signed.items()}
        return not self.over()


def goes_wrong(number, what, party):
    """The session in which this goes wrong once, after so many messages at its end; None if it is over."""
    world = Keeping(0)
    if not world.deliver_until(number):
        return None
    world.go_wrong(what, party)
    world.calm()
    assert world.session.phase == "done", world.session.error
    parts = {(part.party, PartyModel.of(part).to_bytes()) for part in world.kept}
    assert len(parts) == len(world.sites)
    analysts = PartyModel.from_bytes(trained_model_of(world.session).to_bytes())
    files = [PartyModel.from_bytes(data) for _, data in parts]
    assert {part.id for part in files} == {analysts.id}
    assert fb.assemble([analysts, *files]).booster.to_xgboost() == world.due_model
    return world


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("what", WRONG)
def test_whatever_goes_wrong_while_parties_sign_their_parts_are_the_same(number, what):
    assert goes_wrong(number, what, ["bank", "telco", "shop"][number % 3])
