"""What runs on a worker: it reads some of a site's rows, holds them, and answers for them.

Promises: the process that called is the only one that is served; once it hangs up, or does not call within
CALLED_WITHIN, the rows are dropped. A fault of rows or files is told as the site itself would be told it.
"""

import hmac
import json
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import grpc
import numpy as np

from fedboost.boosting.queries.trees import VoteQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.boosting.state import BoostingState
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, SchemaMismatch, quoted
from fedboost.fixedpoint import Int64
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Ranges, Shard
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy.identity import SERVER_NAME, issue, new_root, to_pem
from fedboost.privacy.packing import Words, chunks_of, signed
from fedboost.protocol.contracts import Answering, Holder
from fedboost.protocol.messages import Ask, Introduce
from fedboost.runtime.config import is_loopback
from fedboost.runtime.data.database import ReadOptions
from fedboost.runtime.data.shard import label_values, to_shard, undeclared
from fedboost.runtime.data.table import Table, as_table
from fedboost.runtime.data.values import give_back, keep_freed_memory
from fedboost.runtime.site.rows import Names, named
from fedboost.runtime.workers.engine import WorkerLost
from fedboost.runtime.workers.source import Files, Range
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.wire.messages import decode_to_party, encode_to_party

# ---- The connection between a site's own process and the holder of some of its rows on a worker ---------
# One call of gRPC a holder, for as long as the session lasts: a request, its answer, the next request. What
# a session says travels as it does between aggregator and party, and answers in the cells of the wire;
# nothing that arrives is unpickled. The call ends when either side does, so that each notices the other's
# end.
# Promises: requests are answered in order. A worker on another machine is reached by TLS under a
# certificate made for this one connection, and both ways only with a token that travelled with the rows.
# Refuses: a caller without the token (by hanging up).


HOLD = "/fedboost.Workers/Hold"
TOKEN = "fedboost-token"
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.enable_http_proxy", 0),
]
ANSWER, HISTOGRAMS, GO_TO, HASH = b"A", b"H", b"G", b"R"
"""Kinds of requests: an answer, own histograms for a vote, to move to a state, the hash of the rows."""
_DONE, _FAILED = b"\0", b"\1"
_ERRORS = {kind.__name__: kind for kind in (PeerError, Refused, SchemaMismatch, ConfigError)}


@dataclass(frozen=True)
class Door:
    """Where a holder waits to be called: HOST:PORT, the token, and the certificate (PEM), '' on the same
    machine."""

    address: str
    token: str
    certificate: str


def asking(kind: bytes, query: OfTurn) -> bytes:
    """A request about a query."""
    return kind + encode_to_party(Ask(0, 0, (), query))


def going_to(state: BoostingState) -> bytes:
    """The request to move to a state."""
    return GO_TO + encode_to_party(Introduce((), state))


def query_in(content: bytes) -> OfTurn:
    """The query of a request. PeerError."""
    message = decode_to_party(content)
    if not isinstance(message, Ask):
        raise PeerError("a request to a worker without a query")
    return cast(OfTurn, message.query)


def state_in(content: bytes) -> BoostingState:
    """The state of a request. PeerError."""
    message = decode_to_party(content)
    if not isinstance(message, Introduce) or not isinstance(message.state, BoostingState):
        raise PeerError("a request to a worker without a state")
    return message.state


def packed(values: Int64, query: OfTurn) -> bytes:
    """An answer, in the cells of the wire."""
    words: Words = query.to_cells(values).view(np.uint64)
    return _DONE + b"".join(chunk.packed(chunk.of(words)) for chunk in chunks_of(query.segments))


def total(contents: Sequence[bytes], query: OfTurn) -> Int64:
    """The sum of such answers: int64 [query.cells]."""
    words = np.zeros(sum(cells for cells, _ in query.segments), np.uint64)
    for content in contents:
        view = memoryview(content)[1:]
        for chunk in chunks_of(query.segments):
            piece, view = view[: chunk.size], view[chunk.size :]
            chunk.add(chunk.of(words), piece)
    return query.from_cells(signed(words, query.segments))


def done(content: bytes = b"") -> bytes:
    """An answer of bytes."""
    return _DONE + content


def failed(error: FedboostError) -> bytes:
    """An answer that says why there is none."""
    kind = type(error).__name__
    words = {"kind": kind if kind in _ERRORS else "Refused", "public": error.public, "detail": error.detail}
    return _FAILED + json.dumps(words).encode()


def raise_failed(content: bytes) -> None:
    """Raise the error that an answer says, if it says one."""
    if content[:1] == _FAILED:
        words = json.loads(content[1:])
        raise _ERRORS[words["kind"]](words["public"], words["detail"])


class Link:
    """The site's end of a connection to one holder."""

    def __init__(self, door: Door) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        if door.certificate:
            credentials = grpc.ssl_channel_credentials(door.certificate.encode())
            options = [*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
            self._channel = grpc.secure_channel(door.address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(door.address, OPTIONS)
        call = self._channel.stream_stream(HOLD)
        self._answers = call(iter(self._requests.get, None), metadata=((TOKEN, door.token),))

    def send(self, request: bytes) -> None:
        """Send a request; its answer is read by `receive`."""
        self._requests.put(request)

    def receive(self) -> bytes:
        """The answer to the request that was sent first of those without one. WorkerLost, and the error that
        the holder raised."""
        try:
            answer: bytes = next(self._answers)
        except StopIteration:
            raise WorkerLost("it hung up") from None
        except grpc.RpcError as error:
            raise WorkerLost(str(error.details())) from None
        raise_failed(answer)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._requests.put(None)
        self._answers.cancel()
        self._channel.close()


class Doorkeeper(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The holder's end: serves one caller, who knows the token."""

    def __init__(self, token: str, serve: Any, begun: Any, ended: Any) -> None:
        """serve: a request to its answer; begun, ended: called once the caller is there, and gone."""
        self._token, self._serve, self._begun, self._ended = token, serve, begun, ended
        self._called = False

    def service(self, details: Any) -> Any:
        """The handler of a call; None for other methods."""
        said = dict(details.invocation_metadata).get(TOKEN, "")
        known = hmac.compare_digest(str(said).encode(), self._token.encode())
        if details.method != HOLD or not known or self._called:
            return None
        self._called = True
        return grpc.stream_stream_rpc_method_handler(self._answers)

    def _answers(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._begun()
        try:
            for request in requests:
                yield self._serve(request)
        except grpc.RpcError:
            pass  # the caller is gone
        finally:
            self._ended()


# ---- What runs on a worker: it reads some of a site's rows, holds them, and answers for them ------------


CALLED_WITHIN = 60.0
"""Seconds in which a holder has to be called."""
last_done: dict[str, str] = {}
"""What was done last for each party whose rows are here, for an engine that shows it."""
_held: dict[str, Any] = {}
"""The servers of this process, by token: what is in no variable would be dropped."""


@dataclass(frozen=True)
class Load:
    """What a worker is to hold: rows of a source, or of parts that are given with it, for a party under
    terms. host: the worker's own, at which it is called; keep: False to look alone whether the rows fit;
    sizes: the rows of each file; version: of the fedboost that asks."""

    party: str
    terms: str
    ranges: tuple[Range, ...]
    threads: int
    host: str
    source: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    keep: bool = True
    sizes: tuple[int, ...] = ()
    version: str = VERSION


@dataclass(frozen=True)
class Held:
    """What a worker holds. undeclared: columns with categories that the terms do not declare, one of them,
    and the rows that have any; labels: the values of a label of two words; groups: the keys of the groups of
    its rows; fault: why it holds nothing, an answer of `hold.failed`."""

    rows: int = 0
    door: dict[str, str] = field(default_factory=dict)
    undeclared: tuple[tuple[str, str, int], ...] = ()
    labels: tuple[str, ...] = ()
    groups: bytes = b""
    fault: bytes = b""


def hold(load: Load, *parts: Any) -> Held:
    """Read rows and hold them until the caller hangs up."""
    try:
        if load.version != VERSION:
            raise ConfigError(
                f"a worker has fedboost {VERSION}, and party {load.party} has {load.version}: install one "
                f"version on both"
            )
        keep_freed_memory()
        terms, ranges = Terms.from_canonical(load.terms), load.ranges
        table = _table(load, terms, parts, ranges)
        if table.num_rows != (due := sum(last - first for first, last in ranges)):
            raise ConfigError(f"{table.num_rows} rows where {due} were counted: they have changed; try again")
        read = partial(_read, table, load.party, ranges)
        shard = read(terms)
        strange = tuple(undeclared(table, terms.blocks.columns_of(load.party)))
        groups = b"" if shard.group is None else np.unique(shard.group).tobytes()
        held = Held(shard.rows, {}, strange, label_values(table, terms), groups)
        if not load.keep:
            return held
        rows = [shard]
        del shard
        holder = holder_for(lambda terms: rows.pop() if rows else read(terms), load.party, load.threads)
        kept = _Kept(holder(terms, b""), load.party)
        give_back()
        return replace(held, door=asdict(_serve(kept, load.party, load.host)))
    except FedboostError as error:
        return Held(fault=failed(error))
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told in one line
        return Held(fault=failed(_of_library(error)))


def _read(table: Table, party: str, ranges: Ranges, terms: Terms) -> Shard:
    return to_shard(table, terms, party, ranges)


def _table(load: Load, terms: Terms, parts: Sequence[Any], ranges: Sequence[Range]) -> Table:
    """The rows, under the names that the site gives its columns."""
    if parts:
        import pyarrow as pa

        return pa.concat_tables([as_table(part) for part in parts], promote_options="permissive")
    table = Files(load.source, ReadOptions(**load.options)).rows(ranges, load.sizes)
    if not load.names:
        return table
    return named(table, Names(**load.names), "names").under(terms.columns.row_id)


class _Kept:
    """A holder, and what it does with requests."""

    def __init__(self, holder: Holder, party: str) -> None:
        self._holder, self._party = holder, party

    def serve(self, request: bytes) -> bytes:
        """The answer to a request."""
        kind, content = request[:1], request[1:]
        try:
            return _KINDS[kind](self._holder, content)
        except FedboostError as error:
            return failed(error)
        except Exception as error:  # noqa: BLE001 - else the caller would take it for the end of a worker
            return failed(_of_library(error))
        finally:
            last_done[self._party] = _named(self._holder.state)


def _of_library(error: Exception) -> Refused:
    """What a library has raised, in one line."""
    return Refused("its rows cannot be held at a worker", f"{type(error).__name__}: {quoted(str(error))}")


def _named(state: BoostingState) -> str:
    """Where a training stands, in few words."""
    if not state.rounds:
        return "before the first tree"
    return f"histograms, tree {len(state.rounds)}, level {state.levels}"


def shown() -> str:
    """What was done last for each party whose rows are here, in one line."""
    return "; ".join(f"{party}: {done}" for party, done in last_done.items())


def _answer(holder: Holder, content: bytes) -> bytes:
    query = query_in(content)
    return packed(finished(holder.answering(query)), query)


def _histograms(holder: Holder, content: bytes) -> bytes:
    query = query_in(content)
    if not isinstance(query, VoteQuery) or not isinstance(holder, HorizontalHolder):
        raise PeerError("own histograms are asked for where there is no vote")
    return done(holder.own_histograms(query).tobytes())


def _go_to(holder: Holder, content: bytes) -> bytes:
    holder.go_to(state_in(content))
    return done()


def _hash(holder: Holder, content: bytes) -> bytes:
    return done(holder.rows_hashed(content))


_KINDS: dict[bytes, Callable[[Holder, bytes], bytes]] = {
    ANSWER: _answer,
    HISTOGRAMS: _histograms,
    GO_TO: _go_to,
    HASH: _hash,
}


def finished(answering: Answering) -> Int64:
    """The integers of an answer for which nothing is needed of others. PeerError if something is."""
    try:
        next(answering)
    except StopIteration as end:
        values: Int64 = end.value
        return values
    raise PeerError("an answer needs what other parties relay, which workers do not get")


def _serve(kept: _Kept, party: str, host: str) -> Door:
    """Let the caller in, at a port that the system chooses."""
    token = secrets.token_hex(32)
    server = grpc.server(ThreadPoolExecutor(1, "fedboost"), options=OPTIONS)
    called = threading.Event()

    def ended() -> None:
        _held.pop(token, None)
        last_done.pop(party, None)
        called.set()
        server.stop(1.0)

    server.add_generic_rpc_handlers((Doorkeeper(token, kept.serve, called.set, ended),))
    shown = f"[{host}]" if ":" in host else host
    address, certificate = f"{shown}:0", ""
    if is_loopback(address):
        port = server.add_insecure_port(address)
    else:
        key, certificate, root = _certificate()
        credentials = grpc.ssl_server_credentials([(key, certificate.encode())])
        port, certificate = server.add_secure_port(address, credentials), root
    server.start()
    _held[token] = server

    def give_up() -> None:
        if not called.wait(CALLED_WITHIN):
            ended()

    threading.Thread(target=give_up, daemon=True).start()
    return Door(f"{shown}:{port}", token, certificate)


def _certificate() -> tuple[bytes, str, str]:
    """A key for one connection, its certificate, and the one that it is trusted by; all PEM."""
    from cryptography.hazmat.primitives import serialization

    now = datetime.now(UTC)
    root_key, root = new_root("workers", now, 2)
    key, certificate = issue(root_key, root, "worker", "aggregator", now, 1)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form), to_pem(certificate).decode(), to_pem(root).decode()
