"""The attack: what ends the TLS of a tunnel changes, repeats, drops, reorders, reflects or answers.
The connection inside finds it out: no message is taken, and the member dials again, or its call ends with a
code."""

import asyncio
import ssl

import pytest
from key_folders import THEIRS, made
from proxies import (
    Cuts,
    Impersonates,
    Meddles,
    Records,
    Reflects,
    SpeaksPlainly,
    drops,
    flips_a_bit,
    reorders,
    repeats,
)
from sites import bundles_of, in_time, shared_out, terms, until
from tunnelled import address_of, over
from web_certificates import server_context

from fedboost.errors import FedboostError
from fedboost.runtime.net import channel

TABLES = shared_out(3)
CHANGES = (flips_a_bit, drops, repeats, reorders)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.2)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("hostile") / "keys", TABLES)


@pytest.fixture(scope="module")
def booster(tmp_path_factory, bundles):
    async def scenario():
        async with over("direct", tmp_path_factory.mktemp("direct"), TABLES, bundles) as one:
            return (await one.train(masked())).model.booster

    return in_time(scenario())


def masked(**settings):
    return terms([*TABLES], protection="masked", **settings)


def trained(tmp_path, bundles, hostile, **settings):
    """Train while party north is behind a hostile end of its tunnel: the model and the log."""

    async def scenario():
        async with over("direct", tmp_path, {}, bundles) as one:
            hostile.address = address_of(one.server, "websocket")
            one.start_party("south", TABLES["south"])
            one.start_party("east", TABLES["east"])
            async with hostile.running() as address:
                direct, one.route = one.route, one.route._replace(address=address)
                one.start_party("north", TABLES["north"])
                one.route = direct
                found = await one.train(masked(**settings))
                one.tasks["north"].cancel()
                await asyncio.gather(one.tasks["north"], return_exceptions=True)
            return found.model.booster, one.log

    return in_time(scenario())


@pytest.mark.parametrize("upwards", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_stream_is_dropped_and_training_goes_on(tmp_path, bundles, booster, change, upwards):
    hostile = Meddles("", change, at=9, upwards=upwards)
    found, log = trained(tmp_path, bundles, hostile)
    assert hostile.times == 1
    assert found == booster
    arrivals = [event for event in log.named("party here") if event["party"] == "north"]
    assert len(arrivals) == 2, "it dialled again"
    assert not log.named("party refused")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("at", "upwards"), [(0, True), (0, False), (1, True)])
def test_a_changed_handshake_fails(tmp_path, bundles, change, at, upwards):
    hostile = Meddles("", change, at, upwards, always=True)
    refused(tmp_path, bundles, hostile, "tls-failed", "", "aggregator-lost", "aggregator-unreachable")


def refused(tmp_path, bundles, hostile, code, said, *others):
    """A call through this end of a tunnel ends with this code, or one of the others."""

    async def scenario():
        async with over("direct", tmp_path / "c", {}, bundles) as one:
            hostile.address = address_of(one.server, "websocket")
            async with hostile.running() as address:
                with pytest.raises(FedboostError) as caught:
                    await asyncio.to_thread(one.status, 3.0, address=address)
            assert caught.value.code in (code, *others)
            assert address in str(caught.value)
            assert said in str(caught.value)

    in_time(scenario())


def test_a_reflected_stream_is_no_answer(tmp_path, bundles):
    refused(tmp_path, bundles, Reflects(), "tls-failed", "does not use TLS")


def test_no_tls_inside_is_no_answer(tmp_path, bundles):
    refused(tmp_path, bundles, SpeaksPlainly(), "tls-failed", "does not use TLS")


def test_who_answers_itself_has_no_certificate_of_the_consortium(tmp_path, bundles):
    folder = made(tmp_path / "theirs", "aggregator", "aggregator", THEIRS)
    refused(tmp_path, bundles, Impersonates(server_context(folder)), "tls-failed", "another consortium")


def test_an_older_tls_is_no_answer(tmp_path, bundles):
    """Even of someone who has the aggregator's own key."""
    context = server_context(bundles["aggregator"].folder, ssl.TLSVersion.TLSv1_2)
    refused(tmp_path, bundles, Impersonates(context), "tls-failed", "does not use TLS")


def test_a_recorded_stream_means_nothing_in_another_connection(tmp_path, bundles):
    async def scenario():
        async with over("direct", tmp_path, {}, bundles) as one:
            recorder = Records(address_of(one.server, "websocket"))
            async with recorder.running() as address:
                one.route = one.route._replace(address=address)
                one.start_party("north", TABLES["north"])
                await until(lambda: one.log.named("party here"))
                await one.stop_party("north")
            arrived = len(one.log.events)
            for tape in recorder.tapes:
                host, _, port = one.server.address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"".join(tape))
                answer = await reader.read()  # ends: the aggregator closes the connection
                assert answer[:1] in (b"\x16", b"\x15", b""), "a handshake or an alert of TLS, and no more"
                writer.close()
            assert not [event for event, _ in one.log.events[arrived:] if event.startswith("party")]

    in_time(scenario())


def test_connections_that_are_cut_again_and_again(tmp_path, bundles, booster):
    hostile = Cuts("", 0.5)
    found, _ = trained(tmp_path, bundles, hostile, rounds=40)
    assert hostile.cut > 1
    assert found.trees[: len(booster.trees)] == booster.trees
    assert len(found.trees) == 40
