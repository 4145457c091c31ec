"""Workers that die: the site goes on with the others, and gives the same model."""

from unittest import mock

import pytest
from dask_rows import cuts_of, shared_out, table, terms
from lost_workers import bare_workers, killed, processes

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.workers import holder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning"),
]


@pytest.fixture
def client():
    """Of a cluster of this test's own: Dask does not always start all killed workers again."""
    with processes(3) as client:
        yield client


@pytest.mark.parametrize(
    ("at", "when"),
    [
        (-1, "after"),
        *(pytest.param(at, "before", marks=pytest.mark.long) for at in (0, 1, 4, -1)),
        *(pytest.param(at, "after", marks=pytest.mark.long) for at in (0, 1, 4)),
    ],
)
def test_a_killed_worker_changes_nothing_of_the_model(client, at, when):
    agreed, frame = terms(subsample=0.7), table()
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    exchanges = 2 + agreed.trees.rounds * (agreed.trees.max_depth + 1)
    at = exchanges + at if at < 0 else at
    with client.as_current(), killed(client, at, when) as seen:
        model = fb.simulate(agreed, {"north": shared_out(frame, cuts_of(frame, 5))}).model
    assert model.to_bytes() == expected
    assert len(seen) > at + 1


def test_all_workers_are_killed_and_others_come():
    agreed, frame = terms(), table()
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    with (
        bare_workers(2) as (client, start),
        client.as_current(),
        killed(client, 5, "before", every=True, then=start),
    ):
        model = fb.simulate(agreed, {"north": shared_out(frame, cuts_of(frame, 5))}).model
    assert model.to_bytes() == expected


def test_workers_that_do_not_come_back_are_one_line():
    agreed, frame = terms(), table()
    with (
        bare_workers(1) as (client, _),
        client.as_current(),
        mock.patch.object(holder, "WORKERS_WITHIN", 2.0),
    ):
        north = shared_out(frame, cuts_of(frame, 5))
        with (
            killed(client, 3, "before", every=True),
            pytest.raises(ConfigError, match=r"has had no worker for 2 s; start at least one"),
        ):
            fb.simulate(agreed, {"north": north})
