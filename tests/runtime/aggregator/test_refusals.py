"""Each caller that is refused has a line in the log, with its name or address and the reason, and no flood of
them."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from processes import ending
from sites import Log, bundles_of, consortium, in_time, rows, status_of

from fedboost.runtime.aggregator import handshakes, limits
from fedboost.runtime.aggregator.limits import MAX_PEERS, Refusals
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net import channel

BEGIN = "I1122 16:40:50.022992   17707 handshaker.cc:155] CallNextHandshakerLocked: error="
END = " shutdown=false index=2, args={endpoint=0x7, args={a=b, endpoint_peer_address=ipv4:192.0.2.7:57, x=1"


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
        "left_out": "195 since the line before",
    }
    assert metrics.registry.get_sample_value("fedboost_refused_total", {"event": "party refused"}) == 202


def test_strangers_without_number_do_not_fill_the_memory():
    log = Log()
    noting = Refusals(log, AggregatorMetrics())
    for number in range(2 * MAX_PEERS):
        noting.handshake(f"192.0.2.{number}:1", "no")
    assert len(noting._peers) <= MAX_PEERS + 1
    assert MAX_PEERS <= len(log.events) <= MAX_PEERS + 10


def test_who_was_refused_and_why(tmp_path):
    bundles = bundles_of(tmp_path / "keys", ["north", "south"])

    async def scenario():
        async with consortium(tmp_path / "site", {"north": rows(20)}, bundles=bundles) as one:
            calls = (("south", b"north", None), ("analyst", b"analyst", None), ("south", b"south", "2"))
            for name, party, version in calls:
                opened = channel.dial(one.address, bundles[name])
                await status_of(one.attend(opened, party, *([version] if version else [])))
                await opened.close()
            return one.log.named("party refused")

    wrong_name, wrong_role, wrong_version = in_time(scenario())
    assert wrong_name["peer"] == "party 'south'"
    assert wrong_name["reason"] == "party 'north' dials with the certificate of party 'south'"
    assert wrong_role["peer"] == "analyst 'analyst'"
    assert "certificate of analyst 'analyst': it may not act as party" in wrong_role["reason"]
    assert wrong_version["peer"] == "party 'south'"
    assert "speaks wire version 4, the party 2" in wrong_version["reason"]
    assert all(line["address"].startswith("127.0.0.1:") for line in (wrong_name, wrong_role, wrong_version))


# ---- handshakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("UNKNOWN: Ssl handshake failed: SSL_ERROR_SSL: error:1:HTTP_REQUEST: OK", "speaks HTTP without TLS"),
        ("UNKNOWN: SSL_ERROR_SSL: WRONG_VERSION_NUMBER: OK", "does not speak TLS"),
        ("UNKNOWN: SSL_ERROR_SSL: PEER_DID_NOT_RETURN_A_CERTIFICATE: OK", "shows no certificate"),
        ("UNKNOWN: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "is expired"),
        ("UNKNOWN: CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "another consortium"),
        ("UNKNOWN: SSL_ERROR_SSL: TLSV1_ALERT_PROTOCOL_VERSION: OK", "another version of TLS"),
        ("UNAVAILABLE: Handshake read failed (Socket closed)", "hung up"),
    ],
)
def test_the_words_of_the_core_for_people(error, reason):
    assert reason in handshakes.reason_of(error)


def test_a_trace_in_pieces(capfd):
    """Whatever the pieces are in which it is read, a failure is one event, and other text goes on."""
    records = (
        f"{BEGIN}OK{END}\nI1122 16:40:50.022992 1 x.cc:1] more\n{BEGIN}X: HTTP_REQUEST\n=== Source\n{END}\n"
    )
    text = f"other\n{records}"
    for step in (1, 7, 100, len(text)):
        with handshakes.watched() as traced:
            events = []
            traced.note = lambda *event, events=events: events.append(event)
            for start in range(0, len(text), step):
                traced._take(text[start : start + step])
        assert events == [("192.0.2.7:57", handshakes.reason_of("HTTP_REQUEST"))]
    with handshakes.watched():
        print("to people", file=sys.stderr)
    assert capfd.readouterr().err == "other\n" * 4 + "to people\n"


def test_lines_of_others_between_records_go_on(capfd):
    """A line that the core did not write is not taken for the rest of a record before it."""
    with handshakes.watched() as traced:
        for text in (
            f"{BEGIN}OK{END}\n",
            "a crash\n",
            f"{BEGIN}X: ALERT\n=== Source\nsrc/core/a.cc:6\n{END}\n",
        ):
            traced._take(text)
        traced._take("\nof others\n")
        traced._take("." * handshakes.READ_BYTES)
        traced._take(".\nlast\n")
    dots = "." * (handshakes.READ_BYTES + 1)
    assert capfd.readouterr().err == f"a crash\nof others\n{dots}\nlast\n"


@pytest.mark.slow
def test_a_child_process_that_stays_holds_nobody_up():
    with handshakes.watched() as traced:
        child = subprocess.Popen(["sleep", "20"])
    with ending(child):
        assert child.poll() is None
        assert not traced._thread.is_alive()


def test_standard_error_without_a_reader_ends_no_trace(capfd):
    with handshakes.watched() as traced:
        nobody, writer = os.pipe()
        kept = os.dup(traced._error)
        os.dup2(writer, traced._error)
        os.close(writer)
        os.close(nobody)
        traced._take("to nobody\n")
        os.dup2(kept, traced._error)
        os.close(kept)
        traced._take("to somebody\n")
    assert capfd.readouterr().err == "to somebody\n"


def test_a_crash_is_told(tmp_path):
    code = (
        "import ctypes; from fedboost.runtime.aggregator.handshakes import watched; watched().__enter__(); "
    )
    command = [sys.executable, "-X", "faulthandler", "-c", code + "ctypes.string_at(0)"]
    end = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Fatal Python error: Segmentation fault" in end.stderr


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


@pytest.mark.slow
def test_handshakes_that_fail_are_in_the_log_of_a_process(tmp_path):
    bundles_of(tmp_path / "keys", ["north"])
    other = bundles_of(tmp_path / "other", ["north"])["north"].folder
    (tmp_path / "aggregator.toml").write_text('listen = "127.0.0.1:0"\nkeys = "keys/aggregator"\n')
    command = [sys.executable, "-m", "fedboost", "aggregator", "--config", "aggregator.toml", "--json"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--log-format", "json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=file, text=True
        )
    with ending(process):
        host, _, port = json.loads(process.stdout.readline())["address"].rpartition(":")
        for hello in (b"GET / HTTP/1.0\r\n\r\n", b"", None):
            with socket.create_connection((host, int(port)), 5) as opened:
                if hello is None:
                    shake(opened, other)
                else:
                    opened.sendall(hello)
                time.sleep(0.1)
        end = time.monotonic() + 10
        while log.read_text().count("handshake refused") < 3 and time.monotonic() < end:
            time.sleep(0.05)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "handshake refused"]
    reasons = sorted(line["reason"].split(":")[0] for line in refused)
    assert reasons == [
        "it hung up, or said nothing, before TLS was done",
        "it speaks HTTP without TLS",
        "its certificate is of another consortium",
    ]
    assert all(line["peer"] == "a client from 127.0.0.1" and line["level"] == "warning" for line in refused)
    assert [line["event"] for line in lines if line not in refused] == ["stopping"]


def shake(opened, folder):
    """TLS with the certificate of another consortium."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with context.wrap_socket(opened) as secured, suppress(OSError):
        secured.recv(1)
