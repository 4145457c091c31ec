"""Candidates that parties with different columns try in parallel: the results are those of pooled rows."""

import dataclasses

import pytest
from apart_sessions import LOST, Apart, once
from columns_apart import LAYOUTS, matched, pooled, scattered, terms_of
from consortium import installed
from raised import raised

import fedboost as fb
from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import ConfigError
from fedboost.protocol.messages import Ask
from fedboost.runtime.tasks import terms_to_tune

pytestmark = pytest.mark.usefixtures("one_key")
ROWS, TRIALS = 400, 4
MARKED = {"columns": {"validation": "held_out"}}
SETTINGS = {
    "marked rows": MARKED,
    "drawn rows": {"columns": {"row_id": "id"}},
    "lossguide": {**MARKED, "grow_policy": "lossguide", "max_leaves": 6},
    "sampled": {"columns": {"row_id": "id", "validation": "held_out"}, "subsample": 0.5},
    "alone first": {**MARKED, "alone_rounds": 2},
}
SLOWEST = "drawn rows", "lossguide", "sampled", "alone first"
"""Settings that take longest where gradients are hidden."""
HIDDEN = {"protection": "paillier", "key_bits": 2048}
"""Protection of the label holder's gradients."""
paillier = pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier")


def tuned(layout=None, **settings):
    table = pooled(ROWS)
    tables = {"pooled": table} if layout is None else LAYOUTS[layout].tables(table)
    terms = terms_of(layout and LAYOUTS[layout], rounds=6, **settings)
    return fb.tune(terms, tables, trials=TRIALS)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "alone first"])
@pytest.mark.parametrize("layout", ["three holders", "blocks"])
def test_trials_are_those_of_pooled_rows(layout, setting):
    settings = SETTINGS[setting]
    assert tuned(layout, **settings).trials == tuned(**settings).trials


@paillier
@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [pytest.param(name, marks=[pytest.mark.long] if name in SLOWEST else []) for name in SETTINGS],
)
def test_trials_are_the_same_where_gradients_are_hidden(setting):
    settings = SETTINGS[setting]
    hidden = tuned("three holders", **settings, **HIDDEN)
    assert hidden.trials == tuned("three holders", **settings).trials
    assert len({trial.rounds for trial in hidden.trials}) > 1  # some candidates were dropped


def test_candidates_are_tried_on_matched_rows():
    table = pooled(ROWS)
    tables, common = scattered(LAYOUTS["three holders"], table)
    found = fb.tune(matched(LAYOUTS["three holders"], **MARKED), tables, trials=TRIALS)
    assert found.trials == fb.tune(terms_of(**MARKED), {"pooled": common}, trials=TRIALS).trials


def test_candidates_cannot_have_groups_of_rows():
    terms = terms_of(LAYOUTS["two holders"], min_rows_per_bin=5, **MARKED)
    with raised(ConfigError, "settings-invalid"):
        terms_to_tune(terms, trials=2)


def session(down=None):
    table = pooled(ROWS)
    terms = terms_to_tune(terms_of(LAYOUTS["two holders"], rounds=3, **HIDDEN, **MARKED), trials=TRIALS)
    terms = terms.with_parties(["bank", "telco"])
    return Apart("two holders", table=table, down=down, terms=terms, program=boosting.tune)


def played(down=None):
    return session(down).play()


@paillier
def test_a_candidate_whose_sums_were_opened_has_no_value_of_0():
    """Otherwise an aggregator could leave its margins where they are and compare the sums of two rounds."""

    def ends(party, message):
        return party == "bank" and isinstance(message, Ask) and any(map(is_end, message.query.parts))

    def is_end(part):
        return isinstance(part, EndRoundQuery) and part.tree >= 0

    def still(message):
        told = message.query.parts
        parts = [
            dataclasses.replace(part, values=tuple((leaf, 0.0) for leaf, _ in part.values))
            if is_end(part)
            else part
            for part in told
        ]
        query = parts[0] if len(parts) == 1 else dataclasses.replace(message.query, parts=tuple(parts))
        return [dataclasses.replace(message, query=query)]

    assert played().session.phase == "done"
    apart = played(once(ends, still))
    assert apart.session.phase == "failed"
    assert "does not follow from its rows" in str(apart.left("bank"))


@paillier
@pytest.mark.parametrize("party", ["bank", "telco"])
def test_a_party_may_be_lost_while_candidates_grow(party):
    def begun(name, message):
        return (
            name == party
            and isinstance(message, Ask)
            and message.query.tree == 2
            and len(message.query.splits)
        )

    lost = once(begun, lambda message: LOST)
    apart = played(lost)
    assert lost.done
    assert apart.session.phase == "done", apart.error
    assert apart.session.run.outcome.summary == played().session.run.outcome.summary


@paillier
def test_sums_of_a_candidate_that_was_dropped_are_refused():
    """Its gradients were not relayed for this tree. Both parties are asked the same, as their relays show."""
    dropped, turns = set(), set()

    def another(name, message):
        asked = message.query.parts if isinstance(message, Ask) else ()
        (query,) = [part for part in asked if isinstance(part, HistogramQuery)] or [None]
        if query is None or query.tree < 2:
            return None
        if not len(query.splits):
            dropped.update({*range(TRIALS)} - {*query.nodes})
            return None
        turns.add(message.turn)
        nodes = (*query.nodes[:-1], max(dropped))
        return [dataclasses.replace(message, query=dataclasses.replace(query, nodes=nodes))]

    apart = played(another)
    assert len(turns) == 1
    assert apart.session.phase == "failed"
    assert "candidate that was dropped" in str(apart.left("bank") or apart.left("telco"))


@paillier
def test_a_restart_does_not_make_candidates_dropped():
    """Otherwise an aggregator could pretend a lost connection and get other sums over the same gradients."""
    parts = [part for query in played().queries for part in query.parts]
    (end,) = [part for part in parts if isinstance(part, EndRoundQuery) and part.tree == 0]
    sites = []

    def split(party, message):
        part = message.query.parts[-1] if isinstance(message, Ask) else None
        return isinstance(part, HistogramQuery) and not part.tree and len(part.splits) > 0

    def still(party, message):
        if not split(party, message):
            return None
        if not sites:
            sites.append(party)
            return LOST
        asked = apart.session.run.pending
        nodes = {*range(TRIALS), *asked.splits.left.tolist(), *(asked.splits.left + 1).tolist()}
        values = tuple((leaf, 0.0) for leaf in sorted(nodes - {*asked.splits.node.tolist()}))
        query = dataclasses.replace(end, splits=asked.splits, values=values)
        return [dataclasses.replace(message, query=query.seen_by(apart.terms, party))]

    apart = session(still)
    apart.play()
    assert "does not follow from its rows" in str(apart.left("bank"))
