"""Each caller that is refused has a line in the log, with its name or address and the reason, and no flood of
them."""

import asyncio
import os
import subprocess
import sys

import grpc
import pytest
from processes import ending
from sites import Log, bundles_of, consortium, rows, status_of

from fedboost.errors import Refused
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import MAX_PEERS, Outgoing, Refusals
from fedboost.runtime.aggregator.parties import refuse, sending
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.wire.codec import WIRE_VERSION


def test_a_flood_is_a_few_lines_and_one_a_minute(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    log, metrics = Log(), AggregatorMetrics()
    noting = Refusals(log, metrics)
    for _ in range(200):
        noting.note("party refused", "party 'odd'", "no")
    noting.note("party refused", "party 'other'", "no")
    noting.note("analyst refused", "party 'odd'", "no")
    lines = log.named("party refused")
    assert [line["peer"] for line in lines] == ["party 'odd'"] * 5 + ["party 'other'"]
    assert len(log.named("analyst refused")) == 1
    now[0] += 61
    noting.note("party refused", "party 'odd'", "still no")
    assert log.named("party refused")[-1] == {
        "peer": "party 'odd'",
        "reason": "still no",
        "left_out": "195 since the previous line",
    }
    assert metrics.registry.get_sample_value("fedboost_refused_total", {"event": "party refused"}) == 202


def test_strangers_without_number_do_not_fill_the_memory():
    log = Log()
    noting = Refusals(log, AggregatorMetrics())
    for number in range(2 * MAX_PEERS):
        noting.note("peer refused", f"a client from 192.0.2.{number}", "no")
    assert len(noting._peers) <= MAX_PEERS + 1
    assert MAX_PEERS <= len(log.events) <= MAX_PEERS + 10


async def test_who_was_refused_and_why(tmp_path):
    bundles = bundles_of(tmp_path / "keys", ["north", "south"])
    async with consortium(tmp_path / "site", {"north": rows(20)}, bundles=bundles) as one:
        calls = (("south", b"north", None), ("analyst", b"analyst", None), ("south", b"south", "2"))
        for name, party, version in calls:
            opened = channel.dial(Server(one.address), bundles[name])
            await status_of(one.attend(opened, party, *([version] if version else [])))
            await opened.close()
        wrong_name, wrong_role, wrong_version = one.log.named("party refused")
    assert wrong_name["peer"] == "party 'south'"
    assert wrong_name["reason"] == "party 'north' uses the certificate of party 'south'"
    assert wrong_role["peer"] == "analyst 'analyst'"
    assert "certificate of analyst 'analyst' is not valid for the role party" in wrong_role["reason"]
    assert wrong_version["peer"] == "party 'south'"
    assert f"the aggregator uses version {WIRE_VERSION}, the party uses 2" in wrong_version["reason"]
    assert all(line["address"].startswith("127.0.0.1:") for line in (wrong_name, wrong_role, wrong_version))


@pytest.mark.slow
def test_closed_standard_streams_are_no_numbers_for_other_files(tmp_path):
    (tmp_path / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    run = (
        f"exec {sys.executable} -m fedboost aggregator --config aggregator.toml --insecure-loopback <&- 2>&-"
    )
    process = subprocess.Popen(["sh", "-c", run], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with ending(process):
        assert "listening on 127.0.0.1" in process.stdout.readline()
        links = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 2)]
    assert links[0] == os.devnull
    assert links[1] == os.devnull or links[1].startswith("pipe:")


async def test_a_party_that_is_cut_off_while_it_is_let_in_hears_why():
    """As one whose name is taken, which the aggregator finds at the same time as its adder lets it in."""

    async def attend(requests, context):
        outgoing = Outgoing(asyncio.current_task().cancel)
        asyncio.get_running_loop().call_soon(outgoing.cut)
        try:
            async with sending(outgoing, context, Log()):
                await asyncio.sleep(10)
        except asyncio.CancelledError:
            await refuse(context, Refused("party-name-taken", "no"))

    server = grpc.aio.server()
    handlers = {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as opened:
        call = opened.stream_stream("/test/Attend")()
        assert await asyncio.wait_for(status_of(call), 20) == (grpc.StatusCode.PERMISSION_DENIED, "no")
    await server.stop(0)
