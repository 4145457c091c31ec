"""The connection to a holder: only its site gets in, on other machines by TLS."""

import grpc
import pytest
from dask_rows import cuts_of, on_workers, shared_out, table, terms

import fedboost as fb
from fedboost.runtime.workers import hold as holding
from fedboost.runtime.workers.hold import HASH, HOLD, TOKEN, Door, Link, Load, Range, WorkerLost, hold

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")


def held(host="127.0.0.1"):
    frame = table()
    return hold(Load("north", terms().canonical(), (Range(0, len(frame)),), 1, host), frame)


def answer(door):
    link = Link(door)
    try:
        link.send(HASH + bytes(32))
        return link.receive()
    finally:
        link.close()


@pytest.fixture
def everywhere(monkeypatch):
    """Every address counts as that of another machine."""
    monkeypatch.setattr(holding, "is_loopback", lambda address: False)


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_caller_with_another_token_gets_nothing_and_takes_nothing_away(token):
    door = held().door
    assert len(door.token) == 64
    with pytest.raises(WorkerLost):
        answer(Door(door.address, token, door.certificate))
    assert len(answer(door)) == 33


def test_one_caller_is_served():
    door = held().door
    first = Link(door)
    first.send(HASH + bytes(32))
    assert len(first.receive()) == 33
    with pytest.raises(WorkerLost):
        answer(door)
    first.close()


@pytest.mark.usefixtures("everywhere")
def test_another_machine_is_called_by_tls():
    door = held().door
    assert "BEGIN CERTIFICATE" in door.certificate
    with grpc.insecure_channel(door.address) as channel, pytest.raises(grpc.RpcError):
        next(channel.stream_stream(HOLD)(iter([HASH + bytes(32)]), metadata=((TOKEN, door.token),)))
    assert len(answer(door)) == 33


@pytest.mark.usefixtures("everywhere")
def test_the_certificate_of_another_holder_is_not_trusted():
    one, other = (held().door for _ in range(2))
    with pytest.raises(WorkerLost):
        answer(Door(one.address, one.token, other.certificate))
    assert len(answer(one)) == len(answer(other)) == 33


@pytest.mark.usefixtures("everywhere")
def test_the_model_by_tls_is_the_same():
    agreed, frame = terms(), table()
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    assert on_workers(agreed, {"north": shared_out(frame, cuts_of(frame, 4))}, 2).to_bytes() == expected
