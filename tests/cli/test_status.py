"""`fedboost status`: who is connected, what runs or waits, and for whom; and what each caller may see."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest
from raised import raised
from sites import PATIENCE, bundles_of, consortium, fedboost, rows, shared_out, terms, until

from fedboost.errors import ConfigError, Refused
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.parties import FILE, MAX_NAMES, LastSeen, ask
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.version import VERSION
from fedboost.views.aggregator import NEVER, waiting

TWO = shared_out(2)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(
        tmp_path_factory.mktemp("consortium") / "keys", ["north", "south", "east", "away"], ["eu"]
    )


async def status(one, name="analyst", *options):
    """What the command prints for the holder of this bundle, or without keys."""
    keys = ("--keys", one.bundles[name].folder) if one.bundles else ("--insecure-loopback",)
    end = await asyncio.to_thread(fedboost, "status", "--aggregator", one.address, *keys, *options)
    assert (end.code, end.err) == (0, ""), end
    return json.loads(end.out) if "--json" in options else end.out


@asynccontextmanager
async def waiting_analyst(one, agreed):
    """An analyst whose session waits: the words that it is told."""
    heard, over = [], threading.Event()

    def on_waiting(parties):
        heard.append(waiting(parties, training.absent))
        over.wait(PATIENCE)
        raise ConfigError("test", "enough")

    training = one.analyst.train(agreed, PATIENCE, on_waiting)
    following = asyncio.create_task(asyncio.to_thread(lambda: [*training]))
    try:
        await until(lambda: heard)
        yield heard[0]
    finally:
        over.set()
        await asyncio.gather(following, return_exceptions=True)


def members(facts):
    return {member["name"]: member for member in facts["members"]}


async def test_who_is_connected_who_is_away_and_who_never_came(tmp_path, bundles):
    """Also over a restart of the aggregator: a session that waits says for whom."""
    folder, state, agreed = tmp_path / "one", tmp_path / "state", terms(["north", "away", "nrth"])
    async with consortium(folder, {"away": rows()}, bundles=bundles, state=state) as one:
        await until(lambda: "away" in one.server.connected)
        await one.stop_party("away")
    assert {*json.loads((state / FILE).read_text())} == {"away"}
    async with consortium(folder, {"north": rows()}, bundles=bundles, state=state) as one:
        await until(lambda: "north" in one.server.connected)
        async with waiting_analyst(one, agreed) as heard:
            facts, text, log = await status(one, "analyst", "--json"), await status(one), one.log
    known = members(facts)
    assert known["north"]["since"] > 0
    assert known["north"]["version"] == VERSION
    assert [known[name]["since"] for name in ("away", "nrth")] == [0, 0]
    assert known["away"]["seen"] > known["nrth"]["seen"] == 0
    assert (known["analyst"]["role"], known["analyst"]["version"]) == ("analyst", VERSION)
    (session,) = facts["sessions"]
    assert (session["state"], session["name"], session["analyst"]) == ("waiting", "", "analyst")
    assert (session["program"], session["protection"], session["rounds"]) == ("boosting", "plain", 3)
    assert session["awaited"] == ["away", "nrth"]
    assert f"nrth ({NEVER})" in " ".join(text.split())
    assert "a session is waiting to start" in text
    assert all(len(line) < 80 for line in text.splitlines())
    assert heard.startswith("waiting for away (away since ")
    assert heard.endswith(f", nrth ({NEVER})")
    event, *_ = log.named("waiting")  # another one may follow as the parties leave
    assert (event["analyst"], event["never_connected"]) == ("analyst", ["nrth"])


@pytest.mark.slow
async def test_a_party_sees_itself_and_the_sessions_that_name_it(tmp_path, bundles):
    async with consortium(tmp_path / "one", TWO, bundles=bundles) as one:
        one.start_party("east", rows())
        await until(lambda: len(one.server.connected.names) == 3)
        async with waiting_analyst(one, terms(["north", "away"])):
            north, south, text = (
                await status(one, "north", "--json"),
                await status(one, "south", "--json"),
                await status(one, "south"),
            )
    assert {*members(north)} == {"north", "away", "analyst"}
    assert (len(north["sessions"]), north["others"]) == (1, 0)
    assert {*members(south)} == {"south"}
    assert (south["sessions"], south["others"]) == ([], 1)
    assert text.endswith("Not shown: 1 session without this party.\n")


@pytest.mark.slow
async def test_a_session_that_runs_and_one_that_is_over(tmp_path, bundles):
    async with consortium(tmp_path / "one", {"north": rows()}, bundles=bundles) as one:
        await until(lambda: "north" in one.server.connected)
        running, held = terms(["north"], rounds=50), asyncio.Event()
        training = one.analyst.train(running, PATIENCE)
        first = await asyncio.to_thread(lambda: next(iter(training)))
        await one.stop_party("north")  # the session waits for it, as the terms say
        await until(lambda: one.server.sessions.active.session.phase == "joining")
        facts, text = await status(one, "analyst", "--json"), await status(one)
        one.server.sessions.active.fail("over")
        one.server.sessions.tick(0.0)
        held.set()
        later, log = await status(one, "analyst", "--json"), one.log
    (session,) = facts["sessions"]
    assert first["round"] == 0
    assert (session["state"], session["analyst"], session["rounds"]) == ("running", "analyst", 50)
    assert 1 <= session["done"] <= 50
    assert session["awaited"] == ["north"]
    assert session["name"].startswith("session-")
    assert f"session      {session['name']} is running, {session['done']} of 50 rounds done" in text
    assert "waiting for  north (away since " in text
    assert later["sessions"] == [] or later["sessions"][0]["state"] == "finished"
    assert log.named("session begins")[0]["analyst"] == "analyst"


@pytest.mark.slow
async def test_an_older_aggregator_is_told_from_one_that_has_a_status(tmp_path, monkeypatch):
    async with consortium(tmp_path / "one", {}) as one:
        assert "No one is connected." in await status(one)
        assert (await asyncio.to_thread(one.analyst.status)).version == VERSION
        monkeypatch.setattr(channel, "STATUS_OF", f"/{channel.SERVICE}/Newer")
        arguments = ("status", "--aggregator", one.address, "--insecure-loopback")
        end = await asyncio.to_thread(fedboost, *arguments)
    assert (end.code, end.out) == (2, "")
    assert "is too old to support this, or is not an aggregator" in end.err


@pytest.mark.slow
@pytest.mark.parametrize("keys", [True, False])
async def test_the_health_of_an_adder(tmp_path, bundles, keys, monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.2)
    async with consortium(tmp_path / "one", {}, bundles=bundles if keys else None) as one:
        await one.start_adder("eu")
        address = one.adders["eu"].address
        secret = ("--keys", bundles["analyst"].folder) if keys else ("--insecure-loopback",)

        async def asked(at, *options):
            words = ("status", "--aggregator", at, *secret, *options)
            end = await asyncio.to_thread(fedboost, *words)
            assert end.err.count("\n") == (1 if end.code else 0)
            return end.code, end.out, end.err.removeprefix("fedboost: ").strip()

        assert await asked(address, "--health", "--adder", "eu") == (0, "serving\n", "")
        needs = "--adder requires --health, because an adder has no status; ask the aggregator for the status"
        assert await asked(address, "--adder", "eu") == (2, "", needs)
        code, out, without = await asked(address)
        assert (code, out) == (2, "")
        if keys:
            _, _, other = await asked(address, "--health", "--adder", "us")
            _, _, unnamed = await asked(address, "--health")
            _, _, wrong = await asked(one.address, "--health", "--adder", "eu")
        await one.stop_adder("eu")
        code, _, gone = await asked(address, "--health", "--adder", "eu", "--wait", "0.3")
    assert code == 2
    assert gone.startswith(f"no adder answers at {address} (waited 0.3 s); ")
    if not keys:
        assert without.startswith(f"the aggregator at {address} is too old to support this, or is not an agg")
        return
    lacks = f"the certificate of the aggregator at {address} is not for an aggregator: it lacks the DNS name "
    assert without.startswith(lacks)
    assert unnamed == without
    assert other.startswith(f"the certificate of the adder 'us' at {address} is not for adder 'us'; ")
    assert wrong.startswith(f"the certificate of the adder 'eu' at {one.address} is not for adder 'eu'; ")


async def test_an_adder_that_stops_is_not_up(tmp_path, bundles):
    async with consortium(tmp_path / "one", {}, bundles=bundles) as one:
        await one.start_adder("eu")
        address = one.adders["eu"].address
        one.adders["eu"]._endpoint.health.set_serving(False)
        with raised(Refused, "aggregator-stopping", naming=[f"the adder 'eu' at {address} is stopping"]):
            await ask(Server(address, "eu"), bundles["analyst"], PATIENCE)


@pytest.mark.slow
async def test_a_caller_who_asks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CALLS_SAVED", 0.1)
    monkeypatch.setattr(limits, "REFUSAL_SECONDS", 0.0)
    async with consortium(tmp_path / "one", {}) as one:
        arguments = ("status", "--aggregator", one.address, "--insecure-loopback")
        ends = [await asyncio.to_thread(fedboost, *arguments) for _ in range(5)]
        found = [end for end in ends if end.code]
    assert all("must wait and call less often" in end.err for end in found)


@pytest.mark.parametrize("content", ["[1]", "{", '{"north": "then"}', "\xff"])
def test_a_list_of_parties_that_is_none_is_refused_by_name(tmp_path, content):
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    with raised(ConfigError, "seen-unreadable", naming=[FILE]):
        LastSeen(None).open(tmp_path)


def test_only_so_many_names_are_remembered(tmp_path):
    seen = LastSeen(None)
    seen.open(tmp_path)
    for number in range(MAX_NAMES + 5):
        seen.note(f"p{number}", 100.0 + number)
    seen.note("p5", 9999.5)
    seen.write(1e9)
    again = LastSeen(None)
    again.open(tmp_path)
    assert len(again.times) == MAX_NAMES
    assert (again.last("p4"), again.last("p5"), again.last("p6")) == (0, 9999, 106)
