"""The analyst's end: submits terms to an aggregator, follows the rounds, receives the model.

Promises: `Training` yields a row a round as it comes; after the last row `model` is there. The session lives
at the aggregator: a connection that is lost is dialled again, and the same terms lead back to it.
Refuses: a session that failed raises SessionFailed with the aggregator's sentence; no aggregator within
`wait` seconds is a ConfigError; a model of other terms, or with a signature that is wrong, a PeerError.
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
from fedboost.runtime.config import check_address, choose_keys
from fedboost.runtime.model import Model, read_trained
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.signed_model import PartyModel, SignedModel, request_of
from fedboost.runtime.tasks import OnWaiting, TaskRequests
from fedboost.runtime.telemetry import Row
from fedboost.terms.terms import Terms
from fedboost.wire.messages import (
    CheckRequest,
    Failed,
    ModelPart,
    RoundDone,
    SiteReply,
    Status,
    TrainCommand,
    TrainRequest,
    Waiting,
    decode_check_reply,
    decode_status,
    decode_train_event,
    encode_check_request,
    encode_train_request,
)

REDIAL_SECONDS = 1.0
"""Between two tries to reach an aggregator that was lost."""
MAX_REQUESTS = 5
"""Signed requests of one training: each is good for one session, and a lost connection may be that of an
aggregator that has to begin another."""
STOP_SECONDS = 5.0
"""How long the aggregator is tried to be told that the session is to end."""
STOP_LOST_SECONDS = 0.2
"""How long, if it does not answer now."""

CHECK_SECONDS = 90.0
"""How long the sites have to answer a check: longer than the aggregator waits for them."""
MIN_PATIENCE_SECONDS = 5.0
"""How long an aggregator that was reached has to say its status, at least."""


class _Line:
    """The line to an aggregator, of one training."""

    def __init__(self, address: str, bundle: Bundle | None, on_waiting: OnWaiting | None) -> None:
        self.who = f"the aggregator at {address}"
        self.bundle = bundle
        self._address = address
        self._on_waiting = on_waiting
        self._lost = False
        """True while the aggregator is dialled, and does not answer."""
        self._said = False
        """True if it was said that the aggregator is waited for."""

    def stream(self, request: bytes, wait: float) -> Iterator[bytes]:
        """Yield what the aggregator answers to a request; say so if it does not within some seconds."""
        self._lost = True
        return channel.stream(channel.TRAIN, self._address, self.bundle, request, wait, on_reached=self.note)

    def note(self, reached: bool) -> None:
        """The aggregator was reached, or is waited for."""
        if not reached and self._on_waiting and not self._said:
            self._on_waiting((self.who,))
        self._lost = self._said = not reached

    def command(self, request: bytes) -> bool:
        """Give the aggregator a command; False if it was not reached, which is soon so while it is lost."""
        wait = STOP_LOST_SECONDS if self._lost else STOP_SECONDS
        try:
            list(channel.stream(channel.TRAIN, self._address, self.bundle, request, wait))
        except (grpc.RpcError, FedboostError):
            return False
        return True


class Training:
    """A training under way: iterate for rows; afterwards `model`, `history` and `traffic`."""

    def __init__(
        self, address: str, bundle: Bundle | None, terms: Terms, wait: float, on_waiting: OnWaiting | None
    ) -> None:
        self.history: list[Row] = []
        """A row a round: `round`, metrics by name, `seconds`, and `bytes` of all parties, both ways."""
        self.traffic: dict[str, tuple[int, int]] = {}
        """Party to (bytes sent, bytes received)."""
        self.uncounted = False
        """True if the aggregator was started again before this training followed it: it counts from there.
        Else `traffic` is that of all, but for the round in which an aggregator stopped."""
        self.absent: dict[str, datetime | None] = {}
        """The parties that the session waits for because they are not connected, with when they last were;
        None for those that this aggregator has never seen."""
        self._earlier: dict[str, tuple[int, int]] = {}
        """The traffic that aggregators before the one that runs now had counted."""
        self._totals: dict[int, int] = {}
        """Round to the bytes that the aggregator that runs now had counted at its end."""
        self.asked: datetime | None = None
        """When the session was asked for, where an earlier request of this analyst began it."""
        self._model: Model | PartyModel | None = None
        self._enough = False
        """True if the training is to end with the round under way."""
        self._finishing = False
        """True if the aggregator that runs now was told so."""
        self._requests: list[Request] = []
        """Those that were signed here: one a connection, up to MAX_REQUESTS, for each is good for one
        session."""
        self._line = _Line(address, bundle, on_waiting)
        self._terms = terms
        self._rows = self._follow(wait, on_waiting)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    @property
    def model(self) -> Model | PartyModel:
        """The model, or its structure where parties keep parts of it; waits for the end of the training if it
        goes on."""
        for _ in self._rows:
            pass
        if self._model is None:
            raise SessionFailed("the training ended without a model")
        return self._model

    def stop(self) -> None:
        """End the session at the aggregator, which forgets it. Who only stops listening can come back with
        the same terms."""
        self._command(TrainCommand.STOP)

    def finish(self) -> None:
        """End the training with the round under way; the model is that of the rounds so far."""
        self._enough = self._finishing = True
        self._finishing = self._command(TrainCommand.FINISH)

    def _command(self, command: TrainCommand) -> bool:
        """Give the aggregator a command for the session; False if it was not reached."""
        return self._line.command(encode_train_request(TrainRequest(self._terms.canonical(), command)))

    def _follow(self, wait: float, on_waiting: OnWaiting | None) -> Iterator[Row]:
        """Rows to the end of the session, over as many connections as it takes."""
        who, command = self._line.who, TrainCommand.FOLLOW
        while True:
            try:
                yield from self._events(command, wait, on_waiting)
            except grpc.RpcError as error:
                lost: Any = error
                if lost.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise channel.explained(lost, who) from None
                self._line.note(reached=False)
                time.sleep(REDIAL_SECONDS)
                command, self._finishing = TrainCommand.RETURN, False
                continue
            if self._model is None:
                raise PeerError(f"{who} ended the training without a model")
            return

    def _events(self, command: TrainCommand, wait: float, on_waiting: OnWaiting | None) -> Iterator[Row]:
        """The rows that one connection brings and that are new."""
        data = bytearray()
        before, bytes_before = 0.0, 0
        known = self.traffic
        request = encode_train_request(TrainRequest(self._terms.canonical(), command, self._signed_request()))
        for message in self._line.stream(request, wait):
            match decode_train_event(message):
                case Waiting(parties, absent):
                    self.absent = {
                        party: datetime.fromtimestamp(seen, UTC) if seen > 0 else None
                        for party, seen in absent.items()
                    }
                    if on_waiting:
                        on_waiting(parties)
                case RoundDone(number, metrics, seconds, traffic):
                    total = sum(map(sum, traffic.values()))
                    if self._totals.get(number, total) != total:  # another aggregator counts, from nothing
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
                        if self._enough and not self._finishing:  # it was away when it was to hear of it
                            self.finish()
                case ModelPart(part, last, traffic):
                    data += part
                    if last:
                        self._count(traffic)
                        self.stop()  # it has arrived: the aggregator need not keep it
                        model = read_trained(bytes(data), "the aggregator's model")
                        self._check(model)
                        self._model = model
                case Failed(reason):
                    raise SessionFailed(reason)

    def _count(self, traffic: Mapping[str, tuple[int, int]]) -> None:
        """The traffic so far, by what the aggregator that runs now has counted."""
        before = {party: self._earlier.get(party, (0, 0)) for party in traffic}
        self.traffic = {
            party: (sent + before[party][0], received + before[party][1])
            for party, (sent, received) in traffic.items()
        }

    def _signed_request(self) -> Request | None:
        """A request for a session under the terms, a fresh one while there may be more; None where analysts
        have no keys."""
        if (bundle := self._line.bundle) is None:
            return None
        if len(self._requests) < MAX_REQUESTS:
            self._requests.append(request_of(self._terms, bundle))
        return self._requests[-1]

    def _check(self, model: Model | PartyModel) -> None:
        """Raise PeerError unless the model is of these terms and of a request of this analyst, and what
        parties signed of it is right."""
        if model.terms != self._terms or isinstance(model, PartyModel) != self._terms.keeps_parts:
            raise PeerError("the aggregator's model was trained under other terms than were submitted")
        bundle, now = self._line.bundle, datetime.now(UTC)
        if bundle is None:
            return
        signed = model.verify(bundle.roots, now, bundle.denied)
        if len(signed) < self._terms.signers:
            raise PeerError(
                f"the aggregator's model is signed by {len(signed)} parties; {self._terms.signers} are needed"
            )
        if not signed:
            return
        trust, request = Trust(bundle.roots, bundle.denied, lambda: now), model.request
        asker = "" if request is None else key_exchange.check_request(trust, self._terms, request)
        if request is None or asker != bundle.signer.name:
            raise PeerError("the aggregator's model was trained for another request than this analyst's")
        if request not in self._requests:
            self.asked = datetime.fromtimestamp(request.time, UTC)


class Connection(TaskRequests):
    """An aggregator an analyst can submit terms to."""

    def __init__(self, address: str, bundle: Bundle | None) -> None:
        self._address = address
        self._bundle = bundle

    def train(self, terms: Terms, wait: float = 60.0, on_waiting: OnWaiting | None = None) -> Training:
        """Submit terms; iterate over the result for a row a round.

        wait: seconds to wait for the aggregator to answer; on_waiting: called with the parties the session
        waits for, whenever that changes. They mean the same in all methods.
        """
        _check_parties(terms)
        seconds = min(threading.TIMEOUT_MAX, wait)
        return Training(self._address, self._bundle, terms, seconds, on_waiting)

    def _result(self, terms: Terms, wait: float, on_waiting: OnWaiting | None) -> tuple[SignedModel, Traffic]:
        session = self.train(terms, wait, on_waiting)
        return session.model, session.traffic

    def check(
        self, terms: Terms, wait: float = 60.0, on_waiting: OnWaiting | None = None
    ) -> tuple[SiteReply, ...]:
        """Ask every party of the terms whether it would take part, without a session: the answer of each, in
        the order of the terms' parties."""
        _check_parties(terms)
        request = None if self._bundle is None else request_of(terms, self._bundle, key_exchange.CHECK)
        data = encode_check_request(CheckRequest(terms.canonical(), request))
        return decode_check_reply(self._answer(channel.CHECK, data, wait, CHECK_SECONDS, on_waiting)).sites

    def status(self, wait: float = 5.0) -> Status:
        """Ask who is connected, and which sessions there are. wait: seconds to wait for an answer."""
        return decode_status(self._answer(channel.STATUS_OF, b"", wait, max(wait, MIN_PATIENCE_SECONDS)))

    def _answer(
        self, method: str, request: bytes, wait: float, patience: float, on_waiting: OnWaiting | None = None
    ) -> bytes:
        line = _Line(self._address, self._bundle, on_waiting)
        seconds = min(threading.TIMEOUT_MAX, wait)
        return channel.answer_of(method, self._address, self._bundle, request, seconds, patience, line.note)


def _check_parties(terms: Terms) -> None:
    if not terms.parties:
        raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')


def connect(address: str, keys: Path | str | None = None, insecure_loopback: bool = False) -> Connection:
    """An aggregator by its address, HOST:PORT. Nothing is sent until terms are submitted.

    keys: folder of the analyst's bundle; insecure_loopback: without keys and encryption, which is for an
    aggregator on this machine alone.
    """
    check_address(address, "aggregator")
    folder = None if keys is None else Path(keys)
    return Connection(address, choose_keys(folder, "analyst", address, insecure_loopback))
