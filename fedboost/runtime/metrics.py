"""Prometheus metrics of a process, and the HTTP page that serves them.

The metrics contain numbers and the names of parties and metrics, but nothing about rows. The page is served
by separate threads, at the single path /metrics, and never delays a session.
"""

import socket
import threading
import time
from collections.abc import Iterable, Sized
from contextlib import suppress
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    MetricsHandler,
    ProcessCollector,
    disable_created_metrics,
)

from fedboost.errors import ConfigError
from fedboost.runtime.config import is_loopback
from fedboost.runtime.telemetry import Event
from fedboost.runtime.web.guard import hostname_of, is_loopback_name
from fedboost.system import POSIX
from fedboost.version import VERSION
from fedboost.wire.codec import WIRE_VERSION

PATH = "/metrics"
PATIENCE_SECONDS = 10.0  # for a client's request and its answer
MAX_CLIENTS = 16  # at a time: each needs a thread and a file descriptor, as sessions do
TURN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Bucket bounds of the histogram of turn durations, in seconds."""


ENDS = {"session done": "done", "session failed": "failed", "left the session": "left"}
"""Maps kind of event that ends a session -> value of the metric label `state`."""


class Metrics:
    """Metrics of sessions, rounds and turns, which processes with any role report."""

    def __init__(self, role: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no creation time per counter
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._sessions = self.counter("sessions", "Sessions that started or ended.", ["state"])
        self._active = self.gauge("session_active", "1 while a session is in progress.")
        self._turns = self.counter("turns", "Turns completed, i.e. queries answered by all parties together.")
        self._seconds = Histogram(
            "fedboost_turn_seconds",
            "Duration of a turn in seconds.",
            buckets=TURN_SECONDS,
            registry=self.registry,
        )
        self._rounds = self.counter("rounds", "Boosting rounds completed.")
        self._last = self.gauge("last_round", "Number of the last completed round, starting at 1.")
        self._last_seconds = self.gauge("last_round_seconds", "Duration of the last round in seconds.")
        about = self.gauge(
            "build_info", "Version, wire version and role of this process.", ["version", "wire", "role"]
        )
        about.labels(VERSION, str(WIRE_VERSION), role).set(1)
        for state in ("begun", "done", "failed"):
            self._sessions.labels(state)

    def counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"fedboost_{name}", text, [*labels], registry=self.registry)

    def gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(f"fedboost_{name}", text, [*labels], registry=self.registry)

    def observe(self, event: Event) -> None:
        """Update the metrics according to an event."""
        match event.kind:
            case "session offered" | "session begins" | "session goes on":
                self._sessions.labels("begun").inc()
                self._active.set(1)
            case "session done" | "session failed" | "left the session" as kind:
                self._sessions.labels(ENDS[kind]).inc()
                self._active.set(0)
            case "session paused":
                self._active.set(0)
            case "round":
                self._rounds.inc()
                self._last.set(event.round)
                self._last_seconds.set(event.seconds or 0.0)

    def turn(self, seconds: float) -> None:
        self._turns.inc()
        self._seconds.observe(seconds)


class AggregatorMetrics(Metrics):
    def __init__(self) -> None:
        super().__init__("aggregator")
        self._bytes = {
            way: self.counter(f"{way}_bytes", f"Bytes of session messages {text} a party.", ["party"])
            for way, text in (("received", "from"), ("sent", "to"))
        }
        self._of_party: dict[str, tuple[Counter, ...]] = {}
        """Byte counters by party, cached because prometheus-client looks them up slowly."""
        self._connected = self.gauge("party_connected", "1 while a party is connected.", ["party"])
        self._refused = self.counter("refused", "Refused calls and connections.", ["event"])
        self._result = self.gauge("round_metric", "Metrics of the last round.", ["metric"])
        self._waiting = self.gauge("analysts_waiting", "Analysts waiting for a session to start.")
        self._turn: tuple[int, float] | None = None
        """The current turn, and the time at which it started."""
        for event in ("peer refused", "party refused", "analyst refused", "console refused"):
            self._refused.labels(event)

    def observe(self, event: Event) -> None:
        super().observe(event)
        match event.kind:
            case "session begins" | "session goes on":
                self._turn = None
            case "turn" if self._turn is None or event.turn != self._turn[0]:
                now = time.monotonic()  # the previous turn is over
                if self._turn is not None and 0 < self._turn[0] < event.turn:
                    self.turn(now - self._turn[1])
                self._turn = event.turn, now
            case "session done" if self._turn is not None:
                self.turn(time.monotonic() - self._turn[1])
            case "round":
                self._result.clear()
                for name, value in (event.metrics or {}).items():
                    self._result.labels(name).set(value)
            case "party here":
                self._connected.labels(event.party).set(1)
            case "party gone":
                self._connected.remove(event.party)
            case "bytes":
                if event.party not in self._of_party:
                    counters = (self._bytes[way].labels(event.party) for way in ("received", "sent"))
                    self._of_party[event.party] = (*counters,)
                received, sent = self._of_party[event.party]
                received.inc(event.received)
                sent.inc(event.sent)

    def refused(self, event: str) -> None:
        self._refused.labels(event).inc()

    def waiting(self, analysts: Sized) -> None:
        """Set the collection of waiting analysts, whose size is reported when the page is read."""
        self._waiting.set_function(lambda: len(analysts))


class PartyMetrics(Metrics):
    """Metrics of a party or key holder."""

    def __init__(self, role: str = "party") -> None:
        super().__init__(role)
        self._sessions.labels("left")
        self._connected = self.gauge("connected", "1 while this party is connected to the aggregator.")
        self._bytes = {
            way: self.counter(f"{way}_bytes", f"Bytes of messages {text} the aggregator.")
            for way, text in (("received", "from"), ("sent", "to"))
        }
        self._spent = self.gauge(
            "privacy_epsilon_spent", "Epsilon spent on this site's rows so far.", ["delta"]
        )
        self._left = self.gauge("privacy_epsilon_left", "Epsilon left of the budget.", ["delta"])

    def observe(self, event: Event) -> None:
        super().observe(event)
        match event.kind:
            case "at hand" | "aggregator gone":
                self._connected.set(event.kind == "at hand")
            case "answer":
                self.turn(event.seconds or 0.0)
            case "bytes":
                self._bytes["received"].inc(event.received)
                self._bytes["sent"].inc(event.sent)

    def budget(self, spent: float, left: float | None, delta: float) -> None:
        """Report the epsilon at `delta` spent on the site's rows, and what remains if there is a budget."""
        self._spent.labels(f"{delta:g}").set(spent)
        if left is not None:
            self._left.labels(f"{delta:g}").set(left)


class MetricsPage:
    """HTTP server at http://HOST:PORT/metrics, in its own threads until it is closed."""

    def __init__(self, metrics: Metrics, address: str, log: Any) -> None:
        """Listen on `address` (HOST:PORT) and serve. Raises ConfigError if that is not possible."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        local = is_loopback(address)
        try:
            page = _LocalPage if local else _Page
            self._server = _Server((host, int(port)), page.factory(metrics.registry))
        except OSError as error:
            raise ConfigError(
                "metrics-address-taken",
                f"metrics: cannot listen on {address}: {error.strerror or error}; set `metrics` to another "
                f"address of this machine, or stop the program that uses this address",
            ) from None
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        log.info("metrics are served", address=f"http://{self.address}{PATH}")
        if not local:
            log.warning(
                "metrics are served without keys or encryption to anyone who reaches this address",
                address=self.address,
            )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    allow_reuse_address = POSIX

    def __init__(self, address: tuple[str, int], page: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, page)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would look up this machine's name
        self.server_name, self.server_port = "fedboost", self.server_address[1]
        self._clients = threading.BoundedSemaphore(MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in its own thread, or close the connection if there are too many clients."""
        if self._clients.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, for at most PATIENCE_SECONDS."""
        end = threading.Timer(PATIENCE_SECONDS, _hang_up, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client that disconnects is not an error of this process."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # the connection is closed already
        request.shutdown(socket.SHUT_RDWR)


class _Page(MetricsHandler):
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == PATH:
            super().do_GET()
        else:
            self.send_error(404, f"this server only has the page {PATH}")


class _LocalPage(_Page):
    """The page at a loopback address. It rejects other host names, so that no website can read it."""

    def do_GET(self) -> None:
        host = self.headers.get("Host")
        if host is None or is_loopback_name(hostname_of(host)):
            super().do_GET()
        else:
            self.send_error(421, "use a loopback address, e.g. 127.0.0.1")
