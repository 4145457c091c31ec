"""Metrics for Prometheus: what the page says of a training, and that the dashboard asks for nothing else."""

import asyncio
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from socketserver import BaseServer
from typing import get_args

import pytest
from anything import ANYTHING
from prometheus_client.parser import text_string_to_metric_families
from raised import raised
from sites import PATIENCE, Log, consortium, rows, shared_out, terms, until, written

from fedboost.errors import ConfigError
from fedboost.protocol.site import Budget
from fedboost.runtime import metrics as pages
from fedboost.runtime.metrics import AggregatorMetrics, MetricsPage, PartyMetrics
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.node import PartyMonitor, PartyNode
from fedboost.runtime.telemetry import LINES, WARNINGS, Event, Kind

DASHBOARD = Path(__file__).parents[2] / "aggregator" / "dashboard.json"
TWO = ("north", "south")
NONE = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def pages_end_at_once(monkeypatch):
    """A page notices within half a second that it is to end."""
    monkeypatch.setattr(BaseServer.serve_forever, "__defaults__", (0.01,))


def read(page, path="/metrics"):
    """The samples on a page: (name, labels) to value."""
    with urllib.request.urlopen(f"http://{page.address}{path}", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.mark.slow
async def test_a_training_on_both_pages(tmp_path):
    tables = shared_out(2)
    async with consortium(tmp_path, {"south": tables["south"]}, metrics=NONE) as one:
        (file,) = written(tmp_path, {"north": tables["north"]}).values()
        about = {"party": "north", "aggregator": one.address, "data": file, "metrics": NONE}
        config = PartyConfig(**about, state=tmp_path / "state", policy=ANYTHING)
        node = PartyNode(config, one.log, None)
        one.tasks["north"] = asyncio.create_task(node.run(wait=PATIENCE, once=False))
        await one.train(terms(TWO, rounds=3))
        await until(lambda: node.ended)
        pages = one.server.pages.metrics, node.watch._page
        numbers = [await asyncio.to_thread(read, page) for page in pages]
        await one.stop_party("south")
        aggregator, party, later, log = *numbers, await asyncio.to_thread(read, pages[0]), one.log
    for page in (aggregator, party):
        assert page["fedboost_sessions_total", "begun"] == page["fedboost_sessions_total", "done"] == 1
        assert page["fedboost_session_active",] == 0
        assert page["fedboost_last_round",] == page["fedboost_rounds_total",] == 3
        assert page["fedboost_turns_total",] == page["fedboost_turn_seconds_count",] > 5
        assert page["process_resident_memory_bytes",] > 0
    assert (
        aggregator["fedboost_party_connected", "north"]
        == aggregator["fedboost_party_connected", "south"]
        == 1
    )
    assert ("fedboost_party_connected", "south") not in later
    assert aggregator["fedboost_turns_total",] == party["fedboost_turns_total",]
    assert aggregator["fedboost_received_bytes_total", "north"] > 1000
    assert (
        abs(party["fedboost_sent_bytes_total",] - aggregator["fedboost_received_bytes_total", "north"]) < 100
    )
    assert party["fedboost_received_bytes_total",] >= aggregator["fedboost_sent_bytes_total", "north"] > 1000
    assert 0 < aggregator["fedboost_round_metric", "logloss"] < 1
    assert party["fedboost_connected",] == 1
    assert party["fedboost_privacy_epsilon_spent", "1e-05"] == 0
    rounds = log.named("round")
    assert [row["round"] for row in rounds if row.get("party") == "north"] == [1, 2, 3]
    assert all(row["of"] == 3 and row["seconds"] >= 0 for row in rounds)
    ours = [row for row in rounds if "party" not in row]
    assert ours[-1]["logloss"] == aggregator["fedboost_round_metric", "logloss"]


def test_only_the_page_is_there():
    page = MetricsPage(PartyMetrics(), NONE, Log())
    try:
        assert read(page)
        assert read(page, "/metrics?x=1")
        for path in ("/", "/favicon.ico", "/metrics/x", "/../metrics"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(page, path)
        with raised(ConfigError, "metrics-address-taken"):
            MetricsPage(PartyMetrics(), page.address, Log())
    finally:
        page.close()
    with pytest.raises(urllib.error.URLError):
        read(page)


@pytest.mark.slow
def test_clients_that_stay_take_a_bounded_part(monkeypatch):
    """However many connect, and however slowly each of them talks."""
    monkeypatch.setattr(pages, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(pages, "MAX_CLIENTS", 4)
    page, threads = MetricsPage(PartyMetrics(), NONE, Log()), threading.active_count()
    host, _, port = page.address.rpartition(":")
    with ExitStack() as stack:
        stack.callback(page.close)
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(12)]
        end = time.monotonic() + 1.5
        most = 0
        while time.monotonic() < end:  # each says something all the time
            for client in slow:
                with suppress(OSError):
                    client.send(b"G")
            most = max(most, threading.active_count() - threads)
            time.sleep(0.05)
        assert 4 <= most <= 8  # and a clock each
        assert read(page)


def asked_as(page, host):
    return urllib.request.Request(f"http://{page.address}/metrics", headers={"Host": host})


def test_a_website_whose_name_leads_here_is_told_nothing():
    """DNS rebinding: a browser on this machine asks for the page in the name of a website."""
    page = MetricsPage(PartyMetrics(), NONE, Log())
    try:
        for host in ("localhost:9", "127.0.0.1", "[::1]:9"):
            with urllib.request.urlopen(asked_as(page, host), timeout=10) as answer:
                assert answer.status == 200
        for host in ("evil.example:9", "evil.com@localhost", "127.0.0.1#.evil.com"):
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(asked_as(page, host), timeout=10)
    finally:
        page.close()


@pytest.mark.parametrize(("address", "warned"), [(NONE, False), ("0.0.0.0:0", True)])
def test_a_page_that_others_can_reach_is_warned_of(address, warned):
    log = Log()
    MetricsPage(PartyMetrics(), address, log).close()
    assert bool([event for event, _ in log.events if "without keys or encryption" in event]) == warned


def test_what_is_spent_and_left_of_a_budget(tmp_path):
    from memories import noisy, opened, spend_all

    rules = {"epsilon": 3.0, "delta": 1e-5, "parties": "any", "columns": "any"}
    config = PartyConfig(party="north", aggregator="localhost:1", metrics=NONE, policy=rules)
    with opened(tmp_path / "memory.sqlite", budget=Budget(3.0, 1e-5)) as memory:
        watch = PartyMonitor(config, Log(), memory)
        try:
            before = read(watch._page)
            spend_all(memory, "s", noisy(1.0))
            watch.ended("s", "", False)
            after = read(watch._page)
        finally:
            watch.close()
    spent, left = ("fedboost_privacy_epsilon_spent", "1e-05"), ("fedboost_privacy_epsilon_left", "1e-05")
    assert (before[spent], before[left]) == (0, pytest.approx(3.0, rel=1e-6))
    assert after[spent] == pytest.approx(1.0, rel=1e-3)
    assert 2 < after[left] < 3
    assert after["fedboost_build_info", *_about("keyholder")] == 1


def _about(role):
    from fedboost.version import VERSION
    from fedboost.wire.codec import WIRE_VERSION

    return role, VERSION, str(WIRE_VERSION)


def test_a_session_that_is_paused_is_not_active():
    metrics = PartyMetrics()
    active = []
    for kind in ("session offered", "session paused", "session offered", "left the session"):
        metrics.observe(Event(kind, "s"))
        active.append(metrics.registry.get_sample_value("fedboost_session_active"))
    assert active == [1, 0, 1, 0]
    left = metrics.registry.get_sample_value("fedboost_sessions_total", {"state": "left"})
    assert left == 1


def test_lines_of_events_say_what_events_have():
    assert {*LINES} <= {*get_args(Kind)}
    assert {*WARNINGS} <= {*LINES}
    assert {key for keys in LINES.values() for key in keys} <= {*Event._fields}


async def test_nothing_is_served_unless_it_is_set(tmp_path):
    async with consortium(tmp_path, {"north": rows(20)}) as one:
        assert one.server.pages.metrics is None
        assert one.nodes["north"].watch._page is None


# ---- the dashboard ----------------------------------------------------------------------------------


def exported():
    """The names of all samples that a page may have."""
    names = set()
    for metrics in (AggregatorMetrics(), PartyMetrics()):
        for family in metrics.registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names


def expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_asks_for_what_is_exported():
    names = set()
    for expression in expressions():
        names |= set(re.findall(r"\b((?:fedboost|process)_[a-z_]+)", expression))
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")
    assert names <= exported()
    ours = {name for name in exported() if name.startswith("fedboost_")}
    assert ours <= names, "every metric of ours is on it"


def test_the_dashboard_names_no_source_of_its_own():
    text = DASHBOARD.read_text()
    dashboard = json.loads(text)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", "fedboost"}
    assert set(re.findall(r"\$([a-z]+)", " ".join(expressions()))) <= set(variables)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(places) == len(set(places))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in dashboard["panels"])
