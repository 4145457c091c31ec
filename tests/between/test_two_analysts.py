"""The attack: a second analyst whose certificate has the same name, which was everybody's default, submits
the same terms with the wish to stop, and the first one's training is over. Now a session belongs to the key
that began it."""

import asyncio
from datetime import UTC, datetime

import pytest
from sites import consortium, shared_out, terms
from typer.testing import CliRunner

from fedboost.cli.keys import keys_app
from fedboost.privacy.identity import issue, new_root, to_pem
from fedboost.runtime.analyst import Connection
from fedboost.runtime.net.keys import read_bundle, write_bundle
from fedboost.runtime.net.routes import Server

TABLES = shared_out(3)
LONG = terms([*TABLES], rounds=5_000)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Of parties, an aggregator, and two analysts called marie: "analyst" and "other"."""
    folder, now = tmp_path_factory.mktemp("keys"), datetime.now(UTC)
    root_key, root = new_root("study", now, 2)
    holders = {name: (name, "party") for name in TABLES}
    holders |= {"aggregator": ("hub", "aggregator")}
    holders |= dict.fromkeys(("analyst", "other"), ("marie", "analyst"))
    bundles = {}
    for stem, (name, role) in holders.items():
        key, certificate = issue(root_key, root, name, role, now, 1)
        write_bundle(folder / stem, key, certificate, to_pem(root))
        bundles[stem] = read_bundle(folder / stem, role)
    return bundles


def failures(log):
    """Why sessions failed, as the aggregator has it."""
    return [line["reason"] for line in log.named("session failed") if "party" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["stop", "finish"])
async def test_an_analyst_of_the_same_name_ends_no_other_session(tmp_path, bundles, wish):
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        other = Connection(Server(one.address), bundles["other"])
        mine = one.analyst.train(LONG)
        first = await asyncio.to_thread(next, iter(mine))
        await asyncio.to_thread(getattr(other.train(LONG), wish))
        later = [await asyncio.to_thread(next, iter(mine)) for _ in range(3)]
        await asyncio.to_thread(mine.stop)
        rounds, log = [row["round"] for row in (first, *later)], one.log
    assert rounds == [0, 1, 2, 3]
    assert not log.named("the analyst requested no further rounds")
    assert failures(log) == ["the analyst stopped it"]


@pytest.mark.slow
async def test_an_analyst_of_the_same_name_gets_a_session_of_their_own(tmp_path, bundles):
    """And so no model that is meant for another."""
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        mine = one.analyst.train(LONG)
        await asyncio.to_thread(next, iter(mine))
        waiting = asyncio.Event()
        loop = asyncio.get_running_loop()
        theirs = Connection(Server(one.address), bundles["other"]).train(
            LONG, on_waiting=lambda _: loop.call_soon_threadsafe(waiting.set)
        )
        row = asyncio.create_task(asyncio.to_thread(next, iter(theirs)))
        await waiting.wait()
        assert not row.done()
        await asyncio.to_thread(mine.stop)
        first = await row
        await asyncio.to_thread(theirs.stop)
        found = first["round"], len(one.log.named("session begins"))
    assert found == (0, 2)


@pytest.mark.slow
async def test_who_began_a_session_finds_it_after_a_restart(tmp_path, bundles):
    """The journal knows the key, too."""
    state = tmp_path / "state"
    async with consortium(tmp_path / "c", TABLES, bundles=bundles, state=state) as one:
        mine = one.analyst.train(LONG)
        await asyncio.to_thread(next, iter(mine))
    async with consortium(tmp_path / "d", {}, bundles=bundles, state=state) as one:
        await asyncio.to_thread(Connection(Server(one.address), bundles["other"]).train(LONG).stop)
        assert len(one.log.named("session goes on")) == 1
        assert not failures(one.log)
        await asyncio.to_thread(one.analyst.train(LONG).stop)
        found = failures(one.log)
    assert found == ["the analyst stopped it"]


def test_an_analyst_is_issued_a_bundle_by_name_only(tmp_path):
    def run(*words):
        return CliRunner().invoke(keys_app, [*words, "--folder", str(tmp_path / "keys")])

    assert run("init-consortium").exit_code == 0
    assert run("analyst").exit_code == 2
    assert run("analyst", "marie").exit_code == 0
    assert read_bundle(tmp_path / "keys" / "marie", "analyst").signer.name == "marie"
