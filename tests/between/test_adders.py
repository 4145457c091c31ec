"""Adders over the network: the same model, losses, roles, limits, and what sites see."""

import asyncio
import threading
from dataclasses import replace
from functools import cache

import grpc
import pytest
from columns_apart import LAYOUTS, pooled
from columns_apart import terms_of as terms_apart
from raised import raised
from sites import PATIENCE, bundles_of, consortium, shared_out, status_of, terms, until

import fedboost as fb
from fedboost.errors import ConfigError, SessionFailed
from fedboost.privacy.packing import Segment
from fedboost.protocol.adding import Addition, Cut, Held, Here, RegionSum, RunningSum, To
from fedboost.protocol.messages import Ask, Leave
from fedboost.runtime.aggregator import adder, limits, sessions
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.wire.messages import encode_from_adder, encode_from_party

TABLES = shared_out(4)
EU, US, ODD = "eu", "us", "odd"
REGIONS = {"north": (EU, US), "south": (EU, US), "east": (US, EU), "west": ()}
"""Party -> the adders that it may call, in their order; the last one calls the aggregator."""
LONG = {"rounds": 25}
"""A training during which something else may happen."""
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("adders") / "keys", (*TABLES, ODD), (EU, US))


async def started(one, tables=TABLES, regions=REGIONS, adders=(EU, US), **party):
    """The adders, and the parties through them."""
    for name in adders:
        await one.start_adder(name)
    for name, table in tables.items():
        one.start_party(name, table, through=regions[name], **party)
    await until(lambda: one.server.connected.names == {*tables})


def sent_up(monkeypatch):
    """The frames that adders send to the aggregator."""
    passed, tell = [], adder.AdderServer._tell
    monkeypatch.setattr(
        adder.AdderServer, "_tell", lambda one, frame: passed.append(frame) or tell(one, frame)
    )
    return passed


@cache
def expected(**settings):
    return simulate(terms(**settings), TABLES).model.booster


async def in_the_middle(one, **settings):
    """A training that has begun; the task that ends with its model."""
    training = asyncio.create_task(one.train(terms([*TABLES], **LONG, **settings)))
    await until(lambda: one.log.named("round") or training.done())
    assert not training.done()
    return training


def calls_at(one, name):
    """How often parties have called an adder."""
    return [line["party"] for line in one.log.named("party here") if line.get("process") == name]


async def ends(opened, method, metadata=channel.VERSIONS, data=None):
    """The status code and the cause of a raw call, with one message or none."""
    call = opened.stream_stream(method)(metadata=metadata)
    if data is not None:
        await call.write(data)
    code, _ = await status_of(call)
    return code, dict(await call.trailing_metadata() or ()).get(channel.CAUSE_KEY)


async def advising(one):
    """Wait until all parties of adders answer checks."""
    through = {name for name, names in REGIONS.items() if names}
    await until(lambda: through == {name for each in one.adders.values() for name in each._advising})


def region_at(one, party):
    """The aggregator's end of the adder that a party has called."""
    return one.server.connected.outgoing[party].region


# ---- the same model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("keys", [True, False])
async def test_the_model_is_that_of_the_flat_session(tmp_path, bundles, protection, keys, monkeypatch):
    if protection == "masked" and not keys:
        pytest.skip("masks need keys")
    passed = sent_up(monkeypatch)
    async with consortium(tmp_path / "c", {}, bundles=bundles if keys else None) as one:
        await started(one)
        training = await one.train(terms([*TABLES], protection=protection))
        assert training.model.booster == expected()
        assert any(isinstance(frame, RegionSum) for frame in passed)
        moved = training.traffic
    async with consortium(tmp_path / "flat", TABLES, bundles=bundles if keys else None) as flat:
        await until(lambda: flat.server.connected.names == {*TABLES})
        apart = (await flat.train(terms([*TABLES], protection=protection))).traffic
    differ = [abs(moved[party][0] - apart[party][0]) for party in TABLES]
    assert max(differ) <= (2 * 3 if keys else 0), "only signatures have different lengths"


@pytest.mark.slow
async def test_masks_in_two_legs_are_passed_on(tmp_path, bundles, monkeypatch):
    passed = sent_up(monkeypatch)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        training = await one.train(terms([*TABLES], protection="masked", on_loss="shrink"))
    assert training.model.booster == expected()
    assert not any(isinstance(frame, RegionSum) for frame in passed)


@pytest.mark.slow
async def test_encrypted_cells_are_passed_on(tmp_path, bundles, monkeypatch):
    pytest.importorskip("phe")
    import one_paillier

    one_paillier.share(monkeypatch)
    passed = sent_up(monkeypatch)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        settings = {"protection": "paillier", "keyholder": "north", "rounds": 1, "key_bits": 2048}
        training = await one.train(terms([*TABLES], **settings))
    assert training.model.booster == expected(rounds=1)
    assert not any(isinstance(frame, RegionSum) for frame in passed)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["two holders", "ragged blocks"])
@pytest.mark.parametrize("apart", [True, False])
async def test_parties_with_different_columns_relay_through_adders(tmp_path, layout, apart):
    """Through one adder, or each party of a block through another one."""
    table = pooled()
    tables = LAYOUTS[layout].tables(table)
    agreed = terms_apart(LAYOUTS[layout], rounds=2, parties=[*tables])
    keys = bundles_of(tmp_path / "keys", tables, (EU, US))
    regions = {name: ((EU, US)[number % 2 if apart else 0],) for number, name in enumerate(tables)}
    async with consortium(tmp_path / "c", {}, bundles=keys) as one:
        await started(one, tables, regions)
        training = await one.train(agreed)
    assert training.model.booster == fb.simulate(agreed, tables).model.booster


async def test_terms_are_checked_through_adders(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        await advising(one)
        agreed = terms([*TABLES])
        replies = []
        while not (replies and all(reply.answered for reply in replies)):
            # The party that calls the aggregator itself may not answer checks yet.
            replies = await asyncio.to_thread(one.analyst.check, agreed, PATIENCE)
        assert [reply.party for reply in replies] == [*TABLES]
        assert all(reply.would for reply in replies)


@pytest.mark.slow
async def test_terms_that_are_checked_during_a_session_do_not_disturb_it(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        await advising(one)
        training = await in_the_middle(one, protection="masked")
        for party in ("north", "south"):
            await asyncio.to_thread(one.analyst.check, terms([party, "west"]), PATIENCE)
        assert (await training).model.booster == expected(**LONG)
        assert not one.log.named("party lost")


# ---- losses ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["plain", "masked"])
async def test_an_adder_that_is_started_again_gets_its_parties_back(tmp_path, bundles, protection):
    regions = REGIONS | {"north": (EU,), "south": (EU,)}
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one, regions=regions)
        training = await in_the_middle(one, protection=protection)
        address = one.adders[EU].address
        await one.stop_adder(EU)
        await one.start_adder(EU, address)
        assert (await training).model.booster == expected(**LONG)
        assert calls_at(one, US) == ["east"]
        assert sorted(calls_at(one, EU)) == ["north", "north", "south", "south"]


@pytest.mark.slow
async def test_the_parties_of_an_adder_that_is_gone_call_the_next_one(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        training = await in_the_middle(one, protection="masked")
        await one.stop_adder(EU)
        assert (await training).model.booster == expected(**LONG)
        assert {*calls_at(one, US)} == {"north", "south", "east"}


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["plain", "masked"])
async def test_adders_keep_their_parties_while_the_aggregator_is_restarted(tmp_path, bundles, protection):
    state = tmp_path / "state"
    async with consortium(tmp_path / "c", {}, bundles=bundles, state=state) as one:
        await started(one)
        training = await in_the_middle(one, protection=protection)
        address = one.address
        await one.server.stop()
        config = AggregatorConfig(listen=address, state=state)
        one.server = AggregatorServer(config, one.log, bundles["aggregator"])
        await one.server.start()
        assert (await training).model.booster == expected(**LONG)
        assert sorted(calls_at(one, EU)) == ["north", "south"]
        assert calls_at(one, US) == ["east"]
        assert not [line for line in one.log.named("party gone") if "process" in line]


@pytest.mark.slow
async def test_the_late_party_is_named_and_not_its_region(tmp_path, bundles, monkeypatch):
    monkeypatch.setattr(sessions, "STRAGGLER_SECONDS", 1.0)
    passed, go_on = sent_up(monkeypatch), threading.Event()
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        thread = one.nodes["south"]._thread
        compute = thread._compute

        def late(session, message, *rest):
            if isinstance(message, Ask) and message.turn == 4:
                go_on.wait(PATIENCE)
            return compute(session, message, *rest)

        monkeypatch.setattr(thread, "_compute", late)
        training = asyncio.create_task(one.train(terms([*TABLES], protection="masked")))
        try:
            await until(lambda: one.log.named("waiting"))
        finally:
            go_on.set()
        assert (await training).model.booster == expected()
        assert {tuple(line["parties"]) for line in one.log.named("waiting")} == {("south",)}
    assert any(isinstance(frame, Held) for frame in passed)


# ---- roles and names ------------------------------------------------------------------------------------


async def test_only_adders_may_bring_a_region_and_they_may_nothing_else(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name in ("north", "analyst"):
            async with channel.dial(Server(one.address), bundles[name]) as opened:
                assert await ends(opened, channel.REGION) == (DENIED, "certificate-wrong-role"), name
        async with channel.dial(Server(one.address), bundles["aggregator"]) as opened:
            code, _ = await ends(opened, channel.REGION)
            assert code == grpc.StatusCode.UNAVAILABLE, "its certificate is none of a client"
        async with channel.dial(Server(one.address), bundles[EU]) as opened:
            for name in (b"north", EU.encode()):
                metadata = ((channel.PARTY_KEY, name), *channel.VERSIONS)
                for method in (channel.ATTEND, channel.ADVISE):
                    assert await ends(opened, method, metadata) == (DENIED, "certificate-wrong-role"), method
            for method in (channel.TRAIN, channel.CHECK, channel.STATUS_OF):
                code, _ = await ends(opened, method, data=b"")
                assert code == DENIED, method
        assert not one.server.connected.names
        assert not one.log.named("adder here")


async def test_an_adder_answers_no_analyst_and_no_adder(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await one.start_adder(EU)
        address = one.adders[EU].address
        for method in (channel.TRAIN, channel.CHECK, channel.STATUS_OF, channel.REGION):
            async with channel.dial(Server(address, EU), bundles["analyst"]) as opened:
                assert (await ends(opened, method))[0] == grpc.StatusCode.UNIMPLEMENTED, method
        metadata = ((channel.PARTY_KEY, b"north"), *channel.VERSIONS)
        for name in ("analyst", US, "south"):
            async with channel.dial(Server(address, EU), bundles[name]) as opened:
                assert (await ends(opened, channel.ATTEND, metadata))[0] == DENIED, name


async def test_a_site_takes_for_its_server_only_whom_it_names(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await one.start_adder(EU)
        north = bundles["north"]
        addresses = {"": one.address, EU: one.adders[EU].address}
        for name, address in addresses.items():
            for expects in ("", EU, US):
                fault = await asyncio.to_thread(channel.tls_fault, Server(address, expects), north)
                assert (fault is None) == (name == expects), (name, expects)
                assert fault is None or not fault.passes


@pytest.mark.slow
async def test_a_site_does_not_start_at_an_adder_of_another_name(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await one.start_adder(EU)
        one.adders[US] = one.adders[EU]  # the address of one under the name of the other
        task = one.start_party("north", TABLES["north"], through=(US,))
        with raised(ConfigError, "aggregator-wrong-server"):
            await task
        del one.adders[US]
        assert not one.log.named("party here")


async def test_a_name_that_is_taken_at_the_aggregator_is_refused_through_another_adder(tmp_path, bundles):
    """Not as a flood: the connection that has the name may be about to end."""
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        metadata = ((channel.PARTY_KEY, b"north"), *channel.VERSIONS)
        addresses = (one.adders[US].address, US), (one.adders[EU].address, EU), (one.address, "")
        for address, name in addresses:
            async with channel.dial(Server(address, name), bundles["north"]) as opened:
                for _ in range(2):
                    assert await ends(opened, channel.ATTEND, metadata) == (DENIED, "party-name-taken")
        assert (await one.train(terms([*TABLES]))).model.booster == expected()


async def test_adders_of_one_bundle_are_all_let_in(tmp_path, bundles):
    """As those that the aggregator starts on its own machine."""
    names = [f"{EU}-{number}" for number in range(12)]
    shared = bundles | dict.fromkeys(names, bundles[EU])
    async with consortium(tmp_path / "c", {}, bundles=shared) as one:
        for name in names:
            await one.start_adder(name)
        await until(lambda: len(one.log.named("adder here")) == len(names))
        assert not one.log.named("peer refused")


async def test_an_adder_of_another_version_ends(tmp_path, bundles, monkeypatch):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        other = ((channel.VERSION_KEY, "1"),)
        async with channel.dial(Server(one.address), bundles[EU]) as opened:
            code, cause = await ends(opened, channel.REGION, other)
            assert (code, cause) == (grpc.StatusCode.INVALID_ARGUMENT, "wire-version")
        await one.start_adder(US)
        async with channel.dial(Server(one.adders[US].address, US), bundles["north"]) as opened:
            metadata = ((channel.PARTY_KEY, b"north"), *other)
            assert (await ends(opened, channel.ATTEND, metadata))[1] == "wire-version"
        monkeypatch.setattr(channel, "VERSIONS", other)
        await one.start_adder(EU)
        with raised(ConfigError, "wire-version"):
            await one.tasks[EU]


# ---- hostile peers --------------------------------------------------------------------------------------


@pytest.fixture
def prompt(monkeypatch):
    """Refusals of a flood come without much delay."""
    monkeypatch.setattr(limits, "REFUSAL_SECONDS", 0.05)


@pytest.mark.slow
async def test_a_flood_at_an_adder_costs_its_party_the_connection_and_not_the_region(
    tmp_path, bundles, prompt
):
    message = encode_from_party(Leave("x" * 1000, "no such session"))
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        async with channel.dial(Server(one.adders[EU].address, EU), bundles[ODD]) as opened:
            training = await in_the_middle(one)
            call = one.attend(opened, ODD.encode())
            try:
                for _ in range(100_000):
                    await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert (await status_of(call))[0] != grpc.StatusCode.OK
            again = await ends(opened, channel.ATTEND, ((channel.PARTY_KEY, ODD.encode()), *channel.VERSIONS))
            assert again == (DENIED, "call-too-often")
        assert (await training).model.booster == expected(**LONG)
    assert not one.log.named("party lost")
    (gone,) = (line for line in one.log.named("party gone") if line["party"] == ODD and "process" in line)
    assert "not requested" in gone["reason"]


@pytest.mark.slow
async def test_a_party_that_does_not_read_is_cut_off_by_its_adder(tmp_path, bundles, monkeypatch):
    monkeypatch.setattr(limits, "QUEUED_MESSAGES", 6)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
        monkeypatch.setattr(channel, "CLIENT_OPTIONS", [*channel.CLIENT_OPTIONS, *narrow])
        async with channel.dial(Server(one.adders[EU].address, EU), bundles[ODD]) as deaf:
            call = one.attend(deaf, ODD.encode())
            await call.initial_metadata()
            await until(lambda: ODD in one.server.connected)
            region = region_at(one, ODD)
            for _ in range(200):
                if ODD not in one.server.connected:
                    break
                region.send((ODD,), bytes(1 << 20), False, None)
                await until(lambda: not region.outgoing.is_full)
            await until(lambda: ODD not in one.server.connected)
            call.cancel()
        (gone,) = (line for line in one.log.named("party gone") if line["party"] == ODD and "process" in line)
        assert "does not read" in gone["reason"]
        assert (await one.train(terms([*TABLES]))).model.booster == expected()


@pytest.mark.slow
@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff",
        encode_from_adder(Here(1, "nobody")),
        encode_from_adder(RegionSum(99, 9, 0, b"", b"", (1,), 1)),
    ],
    ids=["no frame", "a number twice", "a sum that nobody asked for"],
)
async def test_an_adder_that_breaks_the_protocol_is_cut_off_and_its_parties_come_back(
    tmp_path, bundles, garbage
):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        training = await in_the_middle(one, protection="masked")
        one.adders[EU]._upstream.put(garbage)
        await until(lambda: one.log.named("adder gone"))
        assert (await training).model.booster == expected(**LONG)
        (gone,) = one.log.named("adder gone")
        assert (gone["adder"], "broke the protocol" in gone["reason"]) == (EU, True)
        assert {line["party"] for line in one.log.named("party lost")} == {"north", "south"}
        assert len(calls_at(one, EU)) == 2, "parties stay at their adder"


async def test_an_adder_that_leaves_a_party_out_of_a_masked_sum_gets_no_model(tmp_path, bundles, monkeypatch):
    add = RunningSum.add

    def leaving_out(self, number, report, size):
        is_first = number == next(iter(self._next))
        nothing = bytes(len(report.cells)) if is_first else report.cells
        return add(self, number, replace(report, cells=nothing), size)

    monkeypatch.setattr(RunningSum, "add", leaving_out)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        with raised(SessionFailed, "training-failed", naming=["did not cancel"]):
            await one.train(terms([*TABLES], protection="masked"))


HOSTILE = {
    "an impossible shape": Addition(1, 1, b"", (Segment(1, 65),), False),
    "no frame": b"\xff\xff",
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
async def test_an_aggregator_that_breaks_the_protocol_costs_the_connection_and_no_party(
    tmp_path, bundles, frame
):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        region = region_at(one, "north")
        if isinstance(frame, bytes):
            region.outgoing.put(frame)
        else:
            region.tell(To((*region.end.names,), b"x", adds=frame))
        await until(lambda: one.log.named("the aggregator broke the protocol"))
        await until(lambda: len(one.log.named("adder here")) == 3)
        await until(lambda: one.server.connected.names == {*TABLES})
        assert sorted(calls_at(one, EU)) == ["north", "south"]
        assert (await one.train(terms([*TABLES]))).model.booster == expected()


async def test_numbers_that_an_adder_does_not_know_do_no_harm(tmp_path, bundles):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await started(one)
        region = region_at(one, "north")
        region.tell(To((1, 77), b"", advises=True))
        region.tell(To((77,), b"x", adds=Addition(1, 1, b"", (Segment(1, 8),), False)))
        region.tell(Cut(77, False, "part-order", "no such party"))
        region.end._receivers = ()
        assert (await one.train(terms([*TABLES]))).model.booster == expected()
        assert not one.log.named("adder gone")


async def test_an_adder_without_its_aggregator_releases_its_sites(tmp_path, bundles, monkeypatch):
    """They go on with their next server, are not held to have broken a rule, and may come back at once."""
    monkeypatch.setattr(adder, "KEEP_SECONDS", 0.5)
    barred = []
    monkeypatch.setattr(limits.Peer, "bar", lambda peer, now: barred.append(peer.name))
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        await one.start_adder(EU)
        await until(lambda: one.log.named("adder here"))
        one.start_party("north", TABLES["north"], through=(EU, ""))
        await until(lambda: calls_at(one, EU))
        one.tasks[EU].cancel()  # it serves on, but has lost the aggregator
        await until(lambda: [line for line in one.log.named("party here") if not line.get("process")][1:])
        assert one.server.connected.arrivals["north"].adder == ""
        gone = [line for line in one.log.named("party gone") if line.get("process") == EU]
    assert [line["reason"] for line in gone] == [adder.CUT_OFF]
    assert barred == []
