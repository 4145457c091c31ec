"""The analyst's client: submits terms to an aggregator, follows the training and receives the model.

Iterating over a `Training` yields a row at the end of each round. Afterwards, `Training.model` is the trained
model. The session runs at the aggregator. If the connection is lost, the client reconnects and submits the
same terms, and the aggregator continues the same session.
Raises: SessionFailed with the aggregator's message if the session fails. ConfigError if no aggregator answers
within `wait` seconds. PeerError if the model was trained under different terms or has an invalid signature.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, SessionFailed
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Request
from fedboost.results.base import Traffic
from fedboost.runtime.config import check_address, choose_keys, require_proxy
from fedboost.runtime.model import Model, read_trained
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.routes import Server
from fedboost.runtime.signed_model import PartyModel, SignedModel, request_of
from fedboost.runtime.tasks import OnWaiting, TaskRequests
from fedboost.runtime.telemetry import Row
from fedboost.terms.terms import Terms
from fedboost.wire import messages

REDIAL_SECONDS = 1.0  # between two attempts to reach a lost aggregator
MAX_REQUESTS = 5
"""Maximum number of signed requests per training. A request is valid for one session only, so an aggregator
that has lost the session needs another request to start a new one."""
STOP_SECONDS = 5.0  # to send the aggregator a command
STOP_LOST_SECONDS = 0.2  # the same, while it does not answer

CHECK_SECONDS = 90.0  # for sites to answer a check: longer than the aggregator waits for them
MIN_PATIENCE_SECONDS = 5.0  # least time for a reached aggregator to report its status


class _Line:
    """Connection to an aggregator for one training."""

    def __init__(self, server: Server, bundle: Bundle | None, on_waiting: OnWaiting | None) -> None:
        self.who = str(server)
        self.bundle = bundle
        self._server = server
        self._on_waiting = on_waiting
        self._lost = False
        """True while the aggregator does not answer."""
        self._said = False
        """True if `on_waiting` was called to report that the aggregator does not answer."""

    def stream(self, request: bytes, wait: float) -> Iterator[bytes]:
        self._lost = True
        return channel.stream(channel.TRAIN, self._server, self.bundle, request, wait, on_reached=self.note)

    def note(self, reached: bool) -> None:
        if not reached and self._on_waiting and not self._said:
            self._on_waiting((f"{self.who}, which does not answer yet",))
        self._lost = self._said = not reached

    def command(self, request: bytes) -> bool:
        """Send a command to the aggregator. Returns False if the aggregator cannot be reached. If the
        connection is already known to be lost, it waits only briefly."""
        wait = STOP_LOST_SECONDS if self._lost else STOP_SECONDS
        try:
            list(channel.stream(channel.TRAIN, self._server, self.bundle, request, wait))
        except (grpc.RpcError, FedboostError):
            return False
        return True


class Training:
    """Handle of a running training. Iterate over it to get one row per round. Afterwards, `model`, `history`
    and `traffic` describe the finished training."""

    def __init__(
        self, server: Server, bundle: Bundle | None, terms: Terms, wait: float, on_waiting: OnWaiting | None
    ) -> None:
        self.history: list[Row] = []
        """One row per round: `round`, metrics by name, `seconds`, and `bytes` (total of all parties, both
        directions)."""
        self.traffic: dict[str, tuple[int, int]] = {}
        """Maps party -> (bytes sent, bytes received)."""
        self.uncounted = False
        """True if the aggregator restarted before this client connected to it, so that `traffic` excludes the
        time before the restart. Otherwise `traffic` is complete, except for rounds in which the aggregator
        stopped."""
        self.absent: dict[str, datetime | None] = {}
        """Maps party for which the session waits -> time at which it was last connected, or None if it has
        never connected to this aggregator."""
        self._earlier: dict[str, tuple[int, int]] = {}
        """Traffic counted by earlier processes of the aggregator."""
        self._totals: dict[int, int] = {}
        """Maps round -> total bytes at its end, as counted by the aggregator's current process."""
        self.asked: datetime | None = None
        """Time of the request that started the session, if another object signed it; otherwise None."""
        self._model: Model | PartyModel | None = None
        self._enough = False
        """True if the training must end after the current round."""
        self._finishing = False
        """True if the aggregator's current process knows that training ends after this round."""
        self._requests: list[Request] = []
        """Requests signed by this object: one per connection, up to MAX_REQUESTS, because each is valid for
        one session."""
        self._line = _Line(server, bundle, on_waiting)
        self._terms = terms
        self._rows = self._follow(wait, on_waiting)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    @property
    def model(self) -> Model | PartyModel:
        """The trained model. If parties keep their parts of the model, it is a `PartyModel` with the
        structure of the trees. Waits until training has ended. Raises SessionFailed if there is no model."""
        for _ in self._rows:
            pass
        if self._model is None:
            raise SessionFailed("training-no-model", "the training ended without a model")
        return self._model

    def stop(self) -> None:
        """Abort the session at the aggregator, which then discards it. To only stop following the session,
        delete this object instead: submitting the same terms leads back to the session."""
        self._command(messages.TrainCommand.STOP)

    def finish(self) -> None:
        """End the training after the current round. The model contains all rounds completed by then."""
        self._enough = self._finishing = True
        self._finishing = self._command(messages.TrainCommand.FINISH)

    def _command(self, command: messages.TrainCommand) -> bool:
        return self._line.command(
            messages.encode_train_request(messages.TrainRequest(self._terms.canonical(), command))
        )

    def _follow(self, wait: float, on_waiting: OnWaiting | None) -> Iterator[Row]:
        """Yield one row per round until the session ends, reconnecting as often as necessary."""
        who, command = self._line.who, messages.TrainCommand.FOLLOW
        while True:
            try:
                yield from self._events(command, wait, on_waiting)
            except grpc.RpcError as error:
                lost: Any = error
                if lost.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise channel.explained(lost, who) from None
                self._line.note(reached=False)
                time.sleep(REDIAL_SECONDS)
                command, self._finishing = messages.TrainCommand.RETURN, False
                continue
            if self._model is None:
                raise PeerError("training-no-model", f"{who} ended the training without a model")
            return

    def _events(
        self, command: messages.TrainCommand, wait: float, on_waiting: OnWaiting | None
    ) -> Iterator[Row]:
        data = bytearray()
        before, bytes_before = 0.0, 0
        known = self.traffic
        request = messages.encode_train_request(
            messages.TrainRequest(self._terms.canonical(), command, self._signed_request())
        )
        for message in self._line.stream(request, wait):
            match messages.decode_train_event(message):
                case messages.Waiting(parties, absent):
                    self.absent = {
                        party: datetime.fromtimestamp(seen, UTC) if seen > 0 else None
                        for party, seen in absent.items()
                    }
                    if on_waiting:
                        on_waiting(parties)
                case messages.RoundDone(number, metrics, seconds, traffic):
                    total = sum(map(sum, traffic.values()))
                    if self._totals.get(number, total) != total:  # a restarted aggregator counts from 0
                        self._earlier, self._totals = known, {}
                    self._totals[number] = total
                    self.uncounted |= not total and number >= len(self.history)
                    self._count(traffic)
                    row: Row = {"round": number, **metrics}
                    row |= {"seconds": seconds - before, "bytes": total - bytes_before}
                    before, bytes_before = seconds, total
                    if number >= len(self.history):
                        self.history.append(row)
                        yield row
                        if self._enough and not self._finishing:  # the command did not reach it
                            self.finish()
                case messages.ModelPart(part, last, traffic):
                    data += part
                    if last:
                        self._count(traffic)
                        self.stop()  # the model has arrived, so the aggregator need not keep it
                        model = read_trained(bytes(data), "the aggregator's model")
                        self._check(model)
                        self._model = model
                case messages.Failed(reason):
                    raise SessionFailed("training-failed", reason)

    def _count(self, traffic: Mapping[str, tuple[int, int]]) -> None:
        """Update the total traffic with the counts of the aggregator's current process."""
        before = {party: self._earlier.get(party, (0, 0)) for party in traffic}
        self.traffic = {
            party: (sent + before[party][0], received + before[party][1])
            for party, (sent, received) in traffic.items()
        }

    def _signed_request(self) -> Request | None:
        """Return a signed request for a session. A new request is signed, unless MAX_REQUESTS have been
        signed already; in that case, the last one is returned. Returns None if this analyst has no keys."""
        if (bundle := self._line.bundle) is None:
            return None
        if len(self._requests) < MAX_REQUESTS:
            self._requests.append(request_of(self._terms, bundle))
        return self._requests[-1]

    def _check(self, model: Model | PartyModel) -> None:
        """Raise PeerError unless the model has these terms, this analyst's request and valid signatures."""
        if model.terms != self._terms or isinstance(model, PartyModel) != self._terms.keeps_parts:
            raise PeerError(
                "model-terms-differ", "the terms of the aggregator's model differ from those submitted"
            )
        bundle, now = self._line.bundle, datetime.now(UTC)
        if bundle is None:
            return
        signed = model.verify(bundle.roots, now, bundle.denied)
        if len(signed) < self._terms.signers:
            raise PeerError(
                "model-too-few-signatures",
                f"the aggregator's model has {len(signed)} signatures, but needs {self._terms.signers}",
            )
        if not signed:
            return
        trust, request = Trust(bundle.roots, bundle.denied, lambda: now), model.request
        asker = "" if request is None else key_exchange.check_request(trust, self._terms, request)
        if request is None or asker != bundle.signer.name:
            raise PeerError(
                "model-request-differs", "the aggregator's model does not belong to a request of this analyst"
            )
        if request not in self._requests:
            self.asked = datetime.fromtimestamp(request.time, UTC)


class Connection(TaskRequests):
    """Client with which an analyst submits terms to an aggregator, for training and other tasks."""

    def __init__(self, server: Server, bundle: Bundle | None) -> None:
        self._server = server
        self._bundle = bundle

    def train(self, terms: Terms, wait: float = 60.0, on_waiting: OnWaiting | None = None) -> Training:
        """Submit terms for training. Nothing is sent until the result is iterated over or its `model` is
        read.

        Args:
            terms: terms that list the parties.
            wait: maximum time in seconds to wait for the aggregator to answer. Other methods have the same
                parameter.
            on_waiting: called with the names of the parties for which the session waits, whenever these
                change. Other methods have the same parameter.

        Returns:
            A `Training`: an iterable with one row per round. After the last round, its `model` is the trained
            model.

        Raises:
            ConfigError: the terms do not list parties.
        """
        _check_parties(terms)
        seconds = min(threading.TIMEOUT_MAX, wait)
        return Training(self._server, self._bundle, terms, seconds, on_waiting)

    def _result(self, terms: Terms, wait: float, on_waiting: OnWaiting | None) -> tuple[SignedModel, Traffic]:
        session = self.train(terms, wait, on_waiting)
        return session.model, session.traffic

    def check(
        self, terms: Terms, wait: float = 60.0, on_waiting: OnWaiting | None = None
    ) -> tuple[messages.SiteReply, ...]:
        """Ask every party in the terms whether it would take part, without starting a session. Returns the
        replies in the order in which the terms list the parties."""
        _check_parties(terms)
        request = None if self._bundle is None else request_of(terms, self._bundle, key_exchange.CHECK)
        data = messages.encode_check_request(messages.CheckRequest(terms.canonical(), request))
        return messages.decode_check_reply(
            self._answer(channel.CHECK, data, wait, CHECK_SECONDS, on_waiting)
        ).sites

    def status(self, wait: float = 5.0) -> messages.Status:
        """Return the connected parties and the sessions. wait: maximum time in seconds to wait for an
        answer."""
        return messages.decode_status(
            self._answer(channel.STATUS_OF, b"", wait, max(wait, MIN_PATIENCE_SECONDS))
        )

    def _answer(
        self, method: str, request: bytes, wait: float, patience: float, on_waiting: OnWaiting | None = None
    ) -> bytes:
        line = _Line(self._server, self._bundle, on_waiting)
        seconds = min(threading.TIMEOUT_MAX, wait)
        return channel.answer_of(method, self._server, self._bundle, request, seconds, patience, line.note)


def _check_parties(terms: Terms) -> None:
    if not terms.parties:
        raise ConfigError(
            "terms-without-parties",
            'the terms do not name any parties; add e.g. parties = ["north", "south"]',
        )


def connect(
    address: str,
    keys: Path | str | None = None,
    insecure_loopback: bool = False,
    proxy: str | None = None,
    ca: Path | str | None = None,
) -> Connection:
    """Return a client for an aggregator. Nothing is sent until terms are submitted.

    Args:
        address: address of the aggregator, HOST:PORT or that of a [tunnel](networks.md).
        keys: folder with the analyst's certificate and key.
        insecure_loopback: connect without keys and encryption; allowed only if the aggregator is on this
            machine.
        proxy: URL of an HTTP proxy on the way, http://HOST:PORT or http://USER:PASSWORD@HOST:PORT (default:
            as the environment says).
        ca: file with the authorities that a tunnel's TLS trusts, in PEM format (default: the system's).

    Raises:
        ConfigError: an address is invalid, the keys cannot be used, or `keys` and `insecure_loopback` are
            both passed or both missing.
    """
    check_address(address, "aggregator")
    folder = None if keys is None else Path(keys)
    try:
        through = None if proxy is None else require_proxy(proxy)
    except ValueError as error:
        raise ConfigError("address-invalid", f"proxy: {error}") from None
    server = Server(address, "", through, None if ca is None else Path(ca))
    return Connection(server, choose_keys(folder, "analyst", address, insecure_loopback))
