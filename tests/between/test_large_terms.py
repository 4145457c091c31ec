"""The attack: terms of a megabyte, most of it names, hold the aggregator's event loop for seconds while it
looks for each name in a list of all; nobody is answered meanwhile, and parties' keepalives go unanswered. Now
every check takes time in proportion to the terms, and they are read in a thread of their own."""

import asyncio
import json
import threading
import time
from functools import partial

import grpc
import pytest
from sites import consortium, shared_out, terms

from fedboost.errors import FedboostError
from fedboost.runtime.aggregator import analysts, limits
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site import node
from fedboost.runtime.site.node import LARGE_MESSAGE
from fedboost.terms.reading import MAX_NEAR, nearest
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import TrainRequest, Waiting, decode_train_event, encode_train_request

WIDE = [f"c{number:05d}" for number in range(32_768)]
MANY = [f"c{number:05d}" for number in range(60_000)]
RANGE = [0, 1]


def offered(columns, **settings):
    """Terms as somebody crafts them, whether they can be or not."""
    return json.dumps({"columns": {"label": "y", **columns}, "parties": ["a", "b", "c"], **settings})


CRAFTED = {
    "60,000 ranges": partial(offered, {"numeric": MANY, "ranges": dict.fromkeys(MANY, RANGE)}),
    "a range for each column": partial(offered, {"numeric": WIDE, "ranges": dict.fromkeys(WIDE, RANGE)}),
    "ranges of no columns": partial(
        offered, {"numeric": WIDE, "ranges": {f"d{name}": RANGE for name in MANY}}
    ),
    "ranges that are none": partial(
        offered, {"numeric": ["x"], "ranges": {name: ["a", "b"] for name in MANY}}
    ),
    "interaction constraints": partial(
        offered, {"numeric": WIDE}, interaction_constraints=[[name] for name in WIDE]
    ),
    "monotone constraints": partial(offered, {"numeric": WIDE}, monotone_constraints=dict.fromkeys(WIDE, 1)),
    "constraints of no columns": partial(
        offered, {"numeric": WIDE}, monotone_constraints=dict.fromkeys(MANY[::-1], 1)
    ),
    "levels": partial(
        offered, {"categorical": {name: [f"{level:x}" for level in range(32)] for name in WIDE[:8_000]}}
    ),
    "parties": partial(
        offered,
        {"numeric": ["x"]},
        **{
            "parties": [f"party-{number}" for number in range(4_096)],
            "protection": "plain",
            "party_metrics": True,
        },
    ),
    "unknown keys": partial(offered, dict.fromkeys(MANY, 1), **dict.fromkeys(MANY, 1)),
}
HELD = 1.5
"""Seconds that the event loop may be held, on a slow machine: it was 17 for the first of these."""


def noting(read, threads):
    """The same function, which notes how many bytes it was given, and in which thread."""

    def noted(data, *more):
        threads.append((len(data), threading.current_thread()))
        return read(data, *more)

    return noted


@pytest.fixture
def read_in(monkeypatch):
    """The threads in which requests and messages were read, by the name of what reads them."""
    threads = {}
    for end, name in ((analysts, "terms_of"), (node, "decode_to_party")):
        monkeypatch.setattr(end, name, noting(getattr(end, name), threads.setdefault(name, [])))
    return threads


async def longest_gap(over):
    """The most seconds that this thread computes between two turns of the event loop, until the task is
    over: of the processor's time, since the machine may be busy."""
    longest, last = 0.0, time.thread_time()
    while not over.done():
        await asyncio.sleep(0.01)
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
    return longest


@pytest.mark.slow
@pytest.mark.parametrize("name", CRAFTED)
async def test_nobody_waits_while_large_terms_are_read(tmp_path, monkeypatch, read_in, name):
    monkeypatch.setattr(limits, "BYTES_PER_CALL", 1 << 30)
    request = encode_train_request(TrainRequest(CRAFTED[name]()))
    version = [(channel.VERSION_KEY, str(WIRE_VERSION))]

    async def answer(call):
        """The first event, or how the call ends."""
        try:
            return decode_train_event(await call.read())
        except grpc.aio.AioRpcError as error:
            return error.code().name

    one = consortium(tmp_path / "c", {}, memory=0.001)
    async with one as running, channel.dial(Server(running.address), None) as opened:
        call = opened.unary_stream(channel.TRAIN)(request, metadata=version)
        answered = asyncio.create_task(answer(call))
        gap = await longest_gap(answered)
        call.cancel()
        answered = await answered
    fits = name in ("levels", "parties")
    assert isinstance(answered, Waiting) if fits else answered in ("INVALID_ARGUMENT", "PERMISSION_DENIED")
    assert gap < HELD
    ((_, thread),) = read_in["terms_of"]
    assert thread is not threading.main_thread()


@pytest.mark.slow
async def test_a_party_reads_large_messages_beside_its_connection(tmp_path, read_in):
    """And in the order in which they came: the model is the one of a simulation."""
    tables = shared_out(2)
    levels = {f"odd {number}": ["x" * 200] for number in range(400)}
    columns = {"label": "y", "numeric": ["age"], "categorical": {"ward": ["a", "b", "c"]}}
    wide = terms([*tables], columns=columns, seed=1)
    names = tables
    for column in levels:
        names = {name: table.append_column(column, [["y"] * table.num_rows]) for name, table in names.items()}
    wide = wide.changed(columns={**columns, "categorical": {**columns["categorical"], **levels}}, rounds=2)
    async with consortium(tmp_path / "c", names) as one:
        model = (await one.train(wide)).model
    messages = [*read_in["decode_to_party"]]
    assert model.to_bytes() == simulate(wide, names).model.to_bytes()
    for size, thread in messages:
        assert (thread is threading.main_thread()) == (size <= LARGE_MESSAGE)
    assert max(size for size, _ in messages) > LARGE_MESSAGE


def test_a_hint_looks_at_few_names_and_little_of_each():
    names = [f"column {number}" for number in range(MAX_NEAR)]
    assert nearest("colunm 7", names) == " (did you mean column 7?)"
    assert nearest("colunm 7", [*["x"] * MAX_NEAR, *names]) == ""
    scrambled = ("ab" * 1_000_000)[:-1]
    assert nearest("ba" * 1_000_000, [scrambled]) != ""


@pytest.mark.slow
def test_a_table_that_is_checked_in_parts_is_as_it_was():
    wide = Terms.from_canonical(CRAFTED["a range for each column"]())
    assert list(wide.columns.ranges) == WIDE
    assert Terms.from_canonical(wide.canonical()) == wide
    assert Terms.from_canonical(wide.canonical()).digest == wide.digest
    odd = {**dict.fromkeys(WIDE, RANGE), WIDE[-1]: [0, "one"]}
    with pytest.raises(FedboostError, match=rf"columns\.ranges\.{WIDE[-1]}\.1: .*should be a valid number"):
        Terms.from_canonical(offered({"numeric": WIDE, "ranges": odd}))


def test_one_unknown_key_of_many_is_named():
    with pytest.raises(FedboostError, match="unknown key 'c00000'"):
        Terms.from_canonical(offered({"numeric": ["x"]}, **dict.fromkeys(MANY, 1)))
    with pytest.raises(FedboostError, match=r"unknown key 'columns\.c00000'"):
        Terms.from_canonical(CRAFTED["unknown keys"]())
