"""Sums that are hidden: who may say what of them, and what a party that lies is told before it is found."""

import dataclasses

import pytest
from apart_sessions import LOST, Apart
from columns_apart import pooled, train_pooled
from consortium import installed

from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.queries.views import hidden_places
from fedboost.protocol.contracts import Answered
from fedboost.protocol.messages import Ask, OpenRequest, OpenShare, Relay
from fedboost.vertical.holder import VerticalHolder

if not installed("paillier"):
    pytest.skip("needs the extra paillier", allow_module_level=True)

from fedboost.privacy.encrypted.paillier import Paillier

SETTINGS = {"protection": "paillier", "key_bits": 2048, "rounds": 2, "max_depth": 2, "max_bin": 8}


@pytest.fixture(scope="module")
def keys():
    return [Paillier().new_secret(2048) for _ in range(2)]


@pytest.fixture(autouse=True)
def few_keys(keys, monkeypatch):
    """To make a key takes longer than a session. A label holder that begins anew has another one."""
    made = []

    def next_key(scheme, bits):
        made.append(bits)
        return keys[len(made) % len(keys)]

    monkeypatch.setattr(Paillier, "new_secret", next_key)


def play(layout="two holders", **settings):
    hooks = {name: settings.pop(name) for name in ("up", "down") if name in settings}
    return Apart(layout, table=pooled(60), **{**SETTINGS, **settings}, **hooks).play()


def opened(apart):
    return len(apart.said(OpenShare, "bank"))


# ---- in plain what is encrypted ----------------------------------------------------------------------


@pytest.mark.parametrize("cells", [(0, 2), (4, 8)])
def test_a_label_holder_chooses_no_split_of_a_foreign_column(monkeypatch, cells):
    """It adds numbers of its own to the sums of a column that it does not have, so that a split wins that
    shows which rows have a value in its lowest bin."""
    among = VerticalHolder._among_all

    def steered(self, query, sums):
        out = among(self, query, sums).copy()
        first = hidden_places(self._terms, self.state.start.cut_points, len(query.nodes))["telco"][0]
        most = 20 * query.gradient.limit
        out[first + cells[0]] += most
        out[first + cells[1]] -= most
        return out

    monkeypatch.setattr(VerticalHolder, "_among_all", steered)
    apart = play(max_depth=1)
    assert apart.error.startswith("party bank broke the protocol: it reports in plain what is encrypted")
    assert not opened(apart)
    assert not apart.said(Relay, "telco")


@pytest.mark.parametrize("cell", [0, 5, -1])
def test_a_feature_holder_says_nothing_in_plain(monkeypatch, cell):
    """It adds to sums of others, so that their columns win."""

    def added(steps):
        answered = yield from steps
        values = answered.values.copy()
        if answered.encrypted:
            values[cell] += 1
        return Answered(values, answered.encrypted)

    answering = VerticalHolder.answering
    monkeypatch.setattr(VerticalHolder, "answering", lambda self, query: added(answering(self, query)))
    apart = play()
    assert apart.error.startswith("party telco broke the protocol: it reports in plain what is encrypted")
    assert not opened(apart)


# ---- another key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("at", [OpenRequest, Ask])
def test_a_label_holder_that_comes_back_has_another_key_and_the_model_is_the_same(at, nth):
    """Nobody sums gradients that were encrypted under the key before."""
    seen = []

    def crash(told, message):
        if told == "bank" and isinstance(message, at) and apart.session.run.grows_a_tree:
            seen.append(message)
            if len(seen) == nth:
                apart.crash("bank")
                return LOST
        return None

    settings = {**SETTINGS, "max_depth": 3}
    apart = Apart("two holders", down=crash, table=pooled(60), **settings, on_loss="wait")
    apart.play()
    assert apart.session.attempt > 1
    grown = {name: settings[name] for name in ("rounds", "max_depth", "max_bin")}
    whole = train_pooled(pooled(60), **grown, min_child_weight=0)
    assert apart.session.booster == whole.model.booster


def test_a_label_holder_that_changes_its_key_in_a_tree_is_found_by_who_sums(keys):
    """It says that it lost nothing, so that nobody asks for gradients under the new key."""
    asked = []

    def change_key(told, m):
        second = isinstance(m, Ask) and isinstance(m.query, HistogramQuery) and len(m.query.splits)
        if not second or asked[:1] not in ([], [m.attempt]):
            return None
        asked.append(m.attempt)
        if told == "telco":
            return []
        member = apart.ends["bank"]._membership
        other = next(key for key in keys if key is not member.secret)
        apart.ends["bank"]._membership = dataclasses.replace(member, secret=other)
        return LOST

    settings = {**SETTINGS, "max_depth": 3}
    apart = Apart("two holders", table=pooled(60), down=change_key, **settings, on_loss="wait")
    apart.play()
    assert len(asked) == 2
    assert apart.left("telco") == "the label holder has another key than when it relayed the gradients"
