"""A site that is started again, whatever became of its files: what an aggregator that lies could have of it
at ebe8635 by naming a session again, after a restart, with other rows, or under a config of another name."""

import asyncio
import shutil
from contextlib import contextmanager

import pyarrow as pa
import pytest
from anything import ANYTHING
from memories import THREE, noisy
from pyarrow import parquet
from refusals import refusal
from sites import Log, bundles_of, consortium, fedboost, rows, shared_out, terms, until

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import ConfigError, SessionFailed
from fedboost.protocol.messages import Ask, Introduce, Join, Leave, Offer, Report, SessionEnded
from fedboost.protocol.party import PartySession
from fedboost.runtime.config import to_toml
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.node import PartyNode
from tests.cli.test_privacy import lines

ALONE = {"protection": "plain"}
"""One party, whose answers are easily read."""


def described(folder, name="party.toml", table="north.parquet", aggregator="localhost:7070", **values):
    """A site's file that allows anything."""
    policy = {**ANYTHING, **values.pop("policy", {})}
    values = {"party": "north", "aggregator": aggregator, "data": table, "policy": policy, **values}
    (folder / name).write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in values.items()))
    return folder / name


@pytest.fixture
def site(tmp_path):
    """A site's file and its table."""
    parquet.write_table(rows(40), tmp_path / "north.parquet")
    return described(tmp_path)


@contextmanager
def started(file):
    """A party that was started with this file: a session of it that is offered something."""
    node = PartyNode(read_party(file), Log(), None)
    try:
        yield lambda: PartySession(node._site())
    finally:
        node.close()


def reply(session, message):
    """The last of the replies to a message."""
    return [*session.handle(message)][-1]


def answer(session, name, query, attempt=1, turn=1, agreement=None):
    """The report of a party to a question in a session, or with what it left."""
    joined = reply(session, Offer(name, agreement or terms(["north"], **ALONE), attempt))
    if isinstance(joined, Leave):
        return joined.reason
    assert isinstance(joined, Join)
    assert [*session.handle(Introduce((joined.greeting,), NOTHING_YET))] == []
    said = reply(session, Ask(turn, attempt, ("north",), query))
    return said.cells if isinstance(said, Report) else said.reason


# ---- one name, one session --------------------------------------------------------------------------


def test_a_session_name_is_not_used_under_two_terms(site):
    """Offered one name under one set of terms after another, a site at ebe8635 took part in each and added up
    what they plan: 673 releases were charged to a session whose terms plan 6."""
    noise = {"placement": "local", "epsilon": 1.0, "delta": 1e-5}
    offers = [noisy(noise=noise, parties=["north"], protection="plain", rounds=2 + n) for n in range(4)]
    with started(site) as party:
        said = [reply(party(), Offer("s", agreement)) for agreement in offers]
    with started(site) as party:
        said += [reply(party(), Offer("s", agreement)) for agreement in offers[1:]]
    assert isinstance(said[0], Join)
    assert {type(one) for one in said[1:]} == {Leave}
    assert all("knows session s under other terms; a session has one name" in one.reason for one in said[1:])
    (spent,) = lines("privacy", "budget", "--config", site)
    assert spent["sessions"] == 1


# ---- the rows of a session --------------------------------------------------------------------------


def test_a_session_is_not_gone_on_with_over_other_rows(site):
    """The table has one row less when the party is started again; the aggregator asks the same question in
    the next attempt. At ebe8635 the answer came, and the difference of the two was that row's."""
    query, table = RowsQuery(), site.parent / "north.parquet"
    with started(site) as party:
        first = answer(party(), "s", query)
    assert isinstance(first, bytes)
    parquet.write_table(rows(40).slice(1), table)
    with started(site) as party:
        assert answer(party(), "s", query, 2) == "party north does not go on with session s; train again"
    parquet.write_table(rows(40), table)
    with started(site) as party:  # the session was left for good
        assert "has ended here" in answer(party(), "s", query, 3)
        assert isinstance(answer(party(), "t", query), bytes)


def test_a_session_goes_on_over_the_same_rows(site):
    """The same bytes once more, from a table that was rewritten."""
    query, table = RowsQuery(), site.parent / "north.parquet"
    answers = []
    for attempt in (1, 2, 3):
        with started(site) as party:
            answers.append(answer(party(), "s", query, attempt))
        parquet.write_table(pa.Table.from_pylist(rows(40).to_pylist(), rows(40).schema), table)
    assert isinstance(answers[0], bytes)
    assert len({*answers}) == 1


# ---- the name of the config -------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_config_of_another_name_has_the_same_memory(tmp_path):
    """At ebe8635 the ledger was named after party.toml: once that was renamed, `sessions 0, left 1.2`, and a
    training that had been refused went through."""
    tables, names = shared_out(3), ("party.toml", "other.toml")
    budget = {"epsilon": 1.2, "delta": 1e-5}
    parquet.write_table(tables["north"], tmp_path / "north.parquet")
    bundles = bundles_of(tmp_path / "keys", THREE)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name in THREE[1:]:
            one.start_party(name, tables[name])
        said = []
        for number, name in enumerate(names):
            if number:
                (tmp_path / names[0]).rename(tmp_path / name)
            else:
                file = described(tmp_path, aggregator=one.address, policy=budget)
                assert fedboost("privacy", "init", "--config", file).code == 0
            node = PartyNode(read_party(tmp_path / name), one.log, bundles["north"])
            task = asyncio.create_task(node.run(wait=20, once=False))
            try:
                await until(lambda number=number: len(one.log.named("party here")) == 3 + number)
                try:
                    said.append((await one.train(noisy())).model)
                except SessionFailed as error:
                    said.append(str(error))
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            said.append(lines("privacy", "budget", "--config", tmp_path / name)[0])
        model, spent, refusal, again = said
    assert model.terms.noise is not None
    assert (spent["sessions"], spent["releases"]) == (again["sessions"], again["releases"]) == (1, 4)
    assert spent == again
    assert "its budget for these rows, epsilon 1.2 at delta 1e-05, has 0." in refusal


# ---- replays after a restart ------------------------------------------------------------------------

REPLAYS = {
    "the same offer": lambda agreement: Offer("s", agreement),
    "a later attempt": lambda agreement: Offer("s", agreement, 2),
    "other terms": lambda agreement: Offer("s", agreement.changed(max_depth=5)),
    "another session's attempt": lambda agreement: Offer("unknown", agreement, 2),
}


def kept(file, copy):
    """Nothing happens to the memory."""


def restored(file, copy):
    """A person puts a copy instead of the memory and says so."""
    shutil.copy(copy, memory_path(read_party(file)))
    assert fedboost("privacy", "init", "--restored", "--config", file).code == 0


def begun_anew(file, copy):
    """A person begins another memory instead of one that was deleted."""
    memory_path(read_party(file)).unlink()
    assert fedboost("privacy", "init", "--restored", "--config", file).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("replay", [*REPLAYS])
@pytest.mark.parametrize("mishap", [kept, restored, begun_anew])
def test_a_session_that_is_over_stays_over_whatever_became_of_the_memory(site, mishap, replay):
    """After its end a session is offered once more to a party that was started again. At ebe8635 it
    remembered nothing, took an attempt's number on trust, and answered."""
    agreement, copy = terms(["north"], **ALONE), site.parent / "copy"
    with started(site) as party:
        assert isinstance(answer(party(), "earlier", RowsQuery()), bytes)
    shutil.copy(memory_path(read_party(site)), copy)
    with started(site) as party:
        session = party()
        assert isinstance(answer(session, "s", RowsQuery()), bytes)
        assert [*session.handle(SessionEnded())] == []
    mishap(site, copy)
    with started(site) as party:
        said = reply(party(), REPLAYS[replay](agreement))
    assert isinstance(said, Leave)


@pytest.mark.parametrize("mishap", ["deleted", "an older copy"])
def test_a_party_does_not_start_over_a_memory_that_forgot(site, mishap):
    """Deleted, or from a backup: until a person says so nothing is answered, and nothing is begun again."""
    path = memory_path(read_party(site))
    with started(site) as party:
        answer(party(), "earlier", RowsQuery())
    shutil.copy(path, site.parent / "copy")
    with started(site) as party:
        answer(party(), "s", RowsQuery())
    path.unlink()
    if mishap == "an older copy":
        shutil.copy(site.parent / "copy", path)
    words = {"deleted": "the memory of this site is gone", "an older copy": "this memory is older than"}
    for _ in range(2):
        with pytest.raises(ConfigError, match=words[mishap]), started(site):
            pass
        assert words[mishap] in refusal("party", "--config", site, "--insecure-loopback", "--wait", "0.1")
