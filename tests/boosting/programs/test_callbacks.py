"""Callbacks that end a training: the model is that of so many rounds, whoever crashes when."""

import pytest
from inprocess import one_party, randomly, run
from raised import raised
from trainings import ROWS, setting_of

from fedboost.errors import ConfigError
from fedboost.protocol import run as journal
from fedboost.protocol.run import AttemptStarted, Opened, Stopped

PARTS = randomly(ROWS, 3, seed=3)


def after(rounds, seen=None):
    """A callback that ends a training once it has so many rounds."""

    def callback(number, metrics):
        if seen is not None:
            seen.append((number, dict(metrics)))
        return number + 1 >= rounds

    return callback


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize(
    "name", ["logistic", "squared error, weights", "quantiles", "rows drawn, classes", "forests"]
)
def test_the_model_has_the_rounds_so_far(name, protection):
    X, y, weight, settings = setting_of(name)
    seen = []
    own = {**settings, "protection": protection}
    session = run(X, y, PARTS, weight, callbacks=[after(2, seen), lambda *_: None], **own)
    assert session.phase == "done"
    due = run(X, y, one_party(ROWS), weight, **{**settings, "rounds": 2})
    assert session.booster.to_xgboost() == due.booster.to_xgboost()
    assert (
        seen
        == [(done.round, done.metrics) for done in session.history]
        == [(done.round, done.metrics) for done in due.history]
    )
    assert session.run.rounds == 2
    assert set(session.attestations) == set(session.terms.parties)
    assert {attest.structure for attest in session.attestations.values()} == {session.run.structure("")}


@pytest.mark.parametrize("rounds", [1, 4, 9])
def test_after_the_first_the_last_and_no_round(rounds):
    X, y, weight, settings = setting_of("logistic, weights")
    session = run(X, y, PARTS, weight, callbacks=[after(rounds)], **settings)
    due = run(X, y, PARTS, weight, **{**settings, "rounds": min(rounds, settings["rounds"])})
    assert session.booster.to_xgboost() == due.booster.to_xgboost()


def test_with_early_stopping_the_best_of_them_is_kept():
    X, y, _, settings = setting_of("logistic")
    watched = {"validation_fraction": 0.3, "learning_rate": 1.0, "max_depth": 6, "rounds": 30}
    own = {**settings, **watched, "early_stopping_rounds": 20}
    session = run(X, y, PARTS, callbacks=[after(8)], **own)
    losses = [done.metrics["validation-logloss"] for done in session.history]
    assert len(losses) == 8
    assert len(session.booster.trees) == losses.index(min(losses)) + 1 < 8


def test_all_callbacks_are_called():
    X, y, _, settings = setting_of("logistic")
    seen = []
    run(X, y, PARTS, callbacks=[after(1), after(9, seen)], **settings)
    assert [number for number, _ in seen] == [0]


class Crash(Exception):
    """The aggregator's process died."""


def crashed(X, y, size, weight=None, sites=None, **settings):
    """The sites of a session whose aggregator died once it had written so many records."""
    written, places = [], {} if sites is None else sites

    def record(made):
        written.append(made)
        if len(written) == size:
            raise Crash

    with pytest.raises(Crash):
        run(X, y, PARTS, weight, record=record, sites=places, **settings)
    return places


@pytest.mark.slow
def test_a_session_that_was_stopped_is_resumed_from_wherever_it_crashed():
    """And no callback is called again for a round of the earlier process: one may look at the time."""
    X, y, weight, settings = setting_of("squared error, weights")
    records = []
    whole = run(X, y, PARTS, weight, callbacks=[after(2)], record=records.append, **settings)
    assert sum(isinstance(record, Stopped) for record in records) == 1
    read = [journal.decode(journal.encode(record)) for record in records]
    for size in range(2, len(read) + 1):
        seen, more = [], []
        watched = {"callbacks": [after(2, seen)], "record": more.append, **settings}
        sites = crashed(X, y, size, weight, callbacks=[after(2)], **settings)
        session = run(X, y, PARTS, weight, past=read[:size], sites=sites, **watched)
        assert session.booster.to_xgboost() == whole.booster.to_xgboost()
        ended = sum(isinstance(record, Opened) for record in read[:size])
        every = sum(isinstance(record, Opened) for record in read)
        assert len(seen) == max(0, min(2, every - ended))
        sites = crashed(X, y, size, weight, callbacks=[after(2)], **settings)
        crashed(X, y, len(more), weight, past=read[:size], sites=sites, callbacks=[after(2)], **settings)
        past = [*read[:size], *more]  # what two crashes leave
        again = run(X, y, PARTS, weight, past=past, sites=sites, **settings)
        assert again.booster.to_xgboost() == whole.booster.to_xgboost()


def test_a_journal_that_stops_where_no_round_ends_cannot_be():
    X, y, _, settings = setting_of("logistic")
    records = []
    run(X, y, PARTS, callbacks=[after(2)], record=records.append, **settings)
    (stopped,) = (record for record in records if isinstance(record, Stopped))
    rest = [record for record in records if record is not stopped]
    assert isinstance(records[0], AttemptStarted)
    for place in (1, 2, len(rest)):
        with raised(ConfigError, "journal-stop"):
            run(X, y, PARTS, past=[*rest[:place], stopped, *rest[place:]], **settings)


def test_a_program_that_takes_no_notice_is_named():
    X, y, _, settings = setting_of("logistic")

    def stubborn(terms, grown):
        inner = boosting(terms, grown)
        query = next(inner)
        while True:
            query = inner.send((yield query))

    def boosting(terms, grown):
        from fedboost.boosting.programs.boosting import train

        return (yield from train(terms, grown))

    assert run(X, y, PARTS, callbacks=[after(2)], program=boosting, **settings).run.rounds == 2
    session = run(X, y, PARTS, callbacks=[after(2)], program=stubborn, **settings)
    assert "program 'boosting' cannot stop before its last round" in str(session.error)


def test_a_callback_that_fails_is_the_callers():
    X, y, _, settings = setting_of("logistic")

    def fails(number, metrics):
        raise KeyError(number)

    with pytest.raises(KeyError):
        run(X, y, PARTS, callbacks=[fails], **settings)
