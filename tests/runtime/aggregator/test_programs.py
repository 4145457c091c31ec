"""Programs that the aggregator offers."""

import socket

import grpc
import pytest
from consortia import TWO, channel_to, expected, submit
from raised import raised
from sites import Log, consortium, in_time, shared_out, status_of, terms

from fedboost.errors import ConfigError, SessionFailed
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.simulation import simulate


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


async def test_a_program_the_aggregator_offers_runs_there(folder):
    tables = shared_out(2)
    async with consortium(folder, tables, ["sites:half_as_many"]) as one:
        training = await one.train(terms(TWO, rounds=4, program="sites:half_as_many"))
    assert training.model.booster == simulate(terms(rounds=2), tables).model.booster
    assert training.model.terms.session.program == "sites:half_as_many"


async def test_a_program_that_is_not_offered_is_refused(folder):
    async with consortium(folder, {}, ["sites:half_as_many"]) as one:
        with pytest.raises(ConfigError) as caught:
            await one.train(terms(TWO, program="os:system"))
        found = str(caught.value)
    assert found == (
        "program 'os:system' is not offered by this aggregator; use one of boosting, tune, describe, "
        "evaluate, drift, sites:half_as_many"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("fails_later", "'sites:fails_later' failed: ZeroDivisionError: a defect"),
        ("asks_nonsense", "'sites:asks_nonsense'"),
        ("asks_beyond_the_wire", "'sites:asks_beyond_the_wire'"),
        ("no_model", "'sites:no_model' returned no model"),
        ("no_generator", "'sites:no_generator'"),
    ],
)
async def test_a_program_with_a_defect_ends_its_session_and_nothing_else(folder, program, said):
    tables = shared_out(2)
    async with consortium(folder, tables, [f"sites:{program}"]) as one:
        with pytest.raises(SessionFailed) as caught:
            await one.train(terms(TWO, program=f"sites:{program}"))
        training = await one.train(terms(TWO))
        assert len(one.log.named("party here")) == 2
        message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert training.model.to_bytes() == expected(tables)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no_such_module:train", "cannot be loaded"),
        ("sites:no_such_function", "cannot be loaded"),
        ("sites:not_even_a_function", "cannot be loaded"),
        ("broken_on_import:train", "cannot be loaded"),
        ("sites", "is not a valid name; write module:function"),
        (":train", "is not a valid name; write module:function"),
    ],
)
def test_an_aggregator_does_not_start_with_a_program_it_cannot_load(tmp_path, monkeypatch, program, said):
    (tmp_path / "broken_on_import.py").write_text("def train(terms) return")
    monkeypatch.syspath_prepend(tmp_path)

    async def start():
        server = AggregatorServer(AggregatorConfig(listen="127.0.0.1:0", programs=(program,)), Log(), None)
        try:
            await server.start()
        finally:
            await server.stop()

    with pytest.raises(ConfigError, match=said) as caught:
        in_time(start())
    assert program in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_terms_without_parties_are_refused_by_the_analyst_and_by_the_aggregator(folder):
    async with consortium(folder, {}) as one, channel_to(one) as opened:
        with raised(ConfigError, "terms-without-parties"):
            connect(one.address, insecure_loopback=True).train(terms())
        code, details = await status_of(submit(opened, terms()))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "do not name any parties" in details


def test_a_port_that_is_taken_is_a_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        async def start():
            server = AggregatorServer(AggregatorConfig(listen=address), Log(), None)
            try:
                await server.start()
            finally:
                await server.stop()

        with raised(ConfigError, "aggregator-cannot-listen", naming=[address]):
            in_time(start())
