"""Code that runs on a worker: it reads some of a site's rows, holds them, and answers queries about them.

It serves only the process that started it. If that process disconnects, or does not connect within
CALLED_WITHIN seconds, the rows are dropped. Errors in rows or files are reported in the same way as for a
table at the site.
"""

import hmac
import json
import queue
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
import numpy as np
import pyarrow as pa

from fedboost.boosting.queries import OfTurn
from fedboost.boosting.queries.trees import VoteQuery
from fedboost.boosting.state import BoostingState
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, SchemaMismatch, quoted
from fedboost.fixedpoint import Int64
from fedboost.holders.columns import holder_for
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy.identity import SERVER_NAME, issue, new_root, to_pem
from fedboost.privacy.packing import Words, chunks_of, signed
from fedboost.protocol.contracts import Answering, Holder
from fedboost.protocol.messages import Ask, Introduce
from fedboost.runtime.config import is_loopback
from fedboost.runtime.data.database import DEFAULT_OPTIONS, ReadOptions
from fedboost.runtime.data.locations import TOGETHER, is_remote, local_files
from fedboost.runtime.data.parquet import ParquetFiles, check_same_names
from fedboost.runtime.data.shard import label_values, to_shard, undeclared
from fedboost.runtime.data.table import Table, as_table, dense_of, parts_of, read_table, source_at
from fedboost.runtime.data.text import Delimited
from fedboost.runtime.data.values import give_back, is_text, keep_freed_memory, kind_of
from fedboost.runtime.site.rows import Names, named
from fedboost.terms.terms import Terms
from fedboost.wire.messages import decode_to_party, encode_to_party


class WorkerLost(Exception):
    """Raised if a worker is lost or no longer answers. Its rows are then loaded on other workers."""


@dataclass(frozen=True)
class Worker:
    """A worker of a cluster. address: its address in the cluster; host: host name for connections to it;
    threads: number of its threads; memory: bytes that it may use, or 0 if unknown."""

    address: str
    host: str
    threads: int
    memory: int


# ---- A site's rows as workers read them: Parquet or CSV files by row range, or parts in memory ----------
# Rows are in the order of file names, so a row's index in the whole table does not depend on its reader. Of
# Parquet files, only the needed row groups and columns are read. Files whose columns differ from the first's,
# and CSV files that disagree on whether a column is text, are rejected with the names of file and column.


_TEXT_FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


class Range(NamedTuple):
    """A range of rows of the whole table: from `first` (inclusive) to `last` (exclusive)."""

    first: int
    last: int


class Heads(NamedTuple):
    """Facts about files, known before their rows are read. rows: total number of rows; columns: the schema,
    serialised by Arrow; sizes: number of rows of each file; fault: code, public text and detail of the error
    if the files cannot be read."""

    rows: int = 0
    columns: bytes = b""
    sizes: tuple[int, ...] = ()
    fault: tuple[str, str, str] = ("", "", "")


class Files:
    """A site's Parquet or CSV files, read by row range. Raises ConfigError if none exist or can be read."""

    def __init__(self, source: str, options: ReadOptions) -> None:
        self._options = options
        self._source = source
        self._parquet: ParquetFiles | None = None
        self._texts, others = _sorted_out(source)
        if self._texts and others and not any(name.lower().endswith(TOGETHER) for name in others):
            raise ConfigError(
                "workers-mixed-files",
                f"{source} contains CSV files and also {others[0]}; move the files with rows to a separate "
                f"folder",
            )
        if not self._texts or others:
            self._texts = []
            found = source_at(source, options)
            if isinstance(found, ParquetFiles):
                self._parquet = found
            elif isinstance(found, Delimited) and found.location.path is not None:
                self._texts = [str(found.location.path)]
            else:
                raise ConfigError(
                    "workers-file-type", f"{found.shown}: workers read only Parquet and CSV files"
                )

    def heads(self) -> Heads:
        """Return the number of rows and the columns. CSV files are read in full for this."""
        if self._parquet is not None:
            columns = self._parquet.head.schema.serialize().to_pybytes()
            return Heads(sum(self._parquet.sizes), columns, self._parquet.sizes)
        schemas, sizes = [], []
        for table in map(self._read, self._texts):
            schemas.append(table.schema)
            sizes.append(table.num_rows)
        _check_same(self._texts, schemas)
        return Heads(sum(sizes), _joint(schemas).serialize().to_pybytes(), tuple(sizes))

    def rows(self, ranges: Sequence[Range], sizes: Sequence[int] = ()) -> Table:
        """Read these row ranges. sizes: known number of rows of each file, used to skip CSV files and to
        detect changed ones. Raises ConfigError if a file has changed."""
        if self._parquet is not None:
            if sizes and tuple(sizes) != self._parquet.sizes:
                raise ConfigError(
                    "worker-rows-changed",
                    f"{self._source}: this worker found different files or rows from those that were "
                    f"counted; all workers must read the same files, which must not change",
                )
            return self._parquet.stored(None).share(ranges)
        pieces, end = [], 0
        for number, path in enumerate(self._texts):
            begin = end
            if sizes and not any(first < begin + sizes[number] and begin < last for first, last in ranges):
                end += sizes[number]
                continue
            table = self._read(path)
            if sizes and table.num_rows != sizes[number]:
                raise ConfigError(
                    "worker-rows-changed", f"{path} changed while the rows were being read; try again"
                )
            end += table.num_rows
            for first, last in ranges:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    pieces.append(table.slice(low - begin, high - low))
        return pa.concat_tables(_as_one(pieces))

    def group_end(self, column: str, at: int) -> int:
        """Return the index of the first row, from `at` on, whose value in `column` differs from the previous
        row's; the total number of rows if there is none. If each group's rows are adjacent, a group starts at
        this index."""
        before, rows, step = None, self.heads().rows, 1 << 12
        for first in range(at - 1, rows, step):
            table = self.rows([Range(first, min(first + step, rows))])
            values = pa.concat_tables(parts_of(table, column)).column(column).to_pylist()
            before = values[0] if before is None else before
            other = next((number for number, value in enumerate(values) if value != before), None)
            if other is not None:
                return first + other
        return rows

    def _read(self, path: str) -> "pa.Table":
        return dense_of(read_table(path, options=self._options))


def heads_of(source: str, options: ReadOptions) -> Heads:
    """Return facts about a site's files (`Heads`), as they are on this worker."""
    try:
        return Files(source, options).heads()
    except ConfigError as error:
        return Heads(fault=(error.code, error.public, error.detail))


def stamp_of(source: str) -> list[tuple[str, int, int, int]]:
    """Return the path, modification time (ns), size and inode of each file, to detect changes."""
    texts, others = _sorted_out(source)
    paths = tuple(map(Path, texts)) if texts and not others else local_files(source)
    states = ((path, path.stat()) for path in paths if path.is_file())
    return [(str(path), state.st_mtime_ns, state.st_size, state.st_ino) for path, state in states]


def group_end_of(source: str, options: ReadOptions, column: str, at: int) -> int:
    return Files(source, options).group_end(column, at)


def _sorted_out(source: str) -> tuple[list[str], list[str]]:
    """Return the CSV files that are in a folder or match a glob pattern, and the other such files, both
    sorted by name. Hidden files are ignored."""
    path = Path(source)
    if is_remote(source):
        return [], []
    if path.is_dir():
        found = path.rglob("*")
    elif any(character in source for character in "*?["):
        found = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    else:
        return [], []
    files = sorted(str(file) for file in found if file.is_file() and not file.name.startswith((".", "_")))
    texts = [name for name in files if name.lower().endswith(_TEXT_FILES)]
    return texts, [name for name in files if name not in texts]


def _check_same(paths: Sequence[str], heads: "Sequence[pa.Schema]") -> None:
    """Raise ConfigError unless all files have the same columns, and agree on which of them are text."""
    first = heads[0]
    for path, head in zip(paths[1:], heads[1:], strict=True):
        check_same_names(path, head.names, paths[0], first.names)
    for name in first.names:
        kinds: dict[bool, tuple[str, str]] = {}
        for path, head in zip(paths, heads, strict=True):
            kind = head.field(name).type
            if not pa.types.is_null(kind):
                kinds.setdefault(is_text(kind), (path, kind_of(pa.chunked_array([], kind))))
        if len(kinds) > 1:
            (one, kind), (other, kind_there) = kinds.values()
            raise ConfigError(
                "table-types-differ",
                f"{one}: column {name!r} is {kind} in this file, but {kind_there} in {other}; write the rows "
                "as Parquet, or all values as one type",
            )


def _joint(heads: "Sequence[pa.Schema]") -> "pa.Schema":
    """Return the columns of all files. Each column has its first type that is not null."""
    fields = []
    for name in heads[0].names:
        own = [head.field(name) for head in heads]
        fields.append(next((field for field in own if not pa.types.is_null(field.type)), own[0]))
    return pa.schema(fields)


def _as_one(tables: "Sequence[pa.Table]") -> "list[pa.Table]":
    """Return the tables with their columns in the same order and of common types."""
    names = tables[0].column_names
    wide = pa.unify_schemas(
        [table.select(names).schema.remove_metadata() for table in tables], promote_options="permissive"
    )
    return [table.select(names).cast(wide) for table in tables]


# ---- The connection between a site's process and a holder of some of its rows on a worker ---------------
# One gRPC call per holder lasts as long as the session, and answers requests in order. Queries, states and
# answers are encoded as between aggregator and party; nothing is unpickled. The call ends with either side,
# so that each notices the end of the other. A worker on another machine is reached by TLS, with a certificate
# for this one connection, and every caller needs the token that was sent with the rows; other calls are
# rejected.


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
"""Kinds of requests: answer a query, return histograms for a vote, go to a state, hash the rows."""
_DONE, _FAILED = b"\0", b"\1"
_ERRORS = {kind.__name__: kind for kind in (PeerError, Refused, SchemaMismatch, ConfigError)}


@dataclass(frozen=True)
class Door:
    """Address (HOST:PORT) at which a holder waits for its caller, the token to send, and the certificate to
    expect (PEM; '' on the same machine)."""

    address: str
    token: str
    certificate: str


def asking(kind: bytes, query: OfTurn) -> bytes:
    return kind + encode_to_party(Ask(0, 0, b"", query))


def going_to(state: BoostingState) -> bytes:
    return GO_TO + encode_to_party(Introduce((), state))


def packed(values: Int64, query: OfTurn) -> bytes:
    """Encode an answer, int64 [query.cells], in the same format as the cells of a message."""
    words: Words = query.to_cells(values).view(np.uint64)
    return _DONE + b"".join(chunk.packed(chunk.of(words)) for chunk in chunks_of(query.segments))


def total(contents: Sequence[bytes], query: OfTurn) -> Int64:
    """Return the sum of encoded answers, int64 [query.cells]."""
    words = np.zeros(sum(cells for cells, _ in query.segments), np.uint64)
    for content in contents:
        view = memoryview(content)[1:]
        for chunk in chunks_of(query.segments):
            piece, view = view[: chunk.size], view[chunk.size :]
            chunk.add(chunk.of(words), piece)
    return query.from_cells(signed(words, query.segments))


def failed(error: FedboostError) -> bytes:
    """Encode an error as an answer."""
    kind = type(error).__name__
    words = {
        "kind": kind if kind in _ERRORS else "Refused",
        "error": [error.code, error.public, error.detail],
    }
    return _FAILED + json.dumps(words).encode()


def raise_failed(content: bytes) -> None:
    """Raise the error that an answer contains, if any."""
    if content[:1] == _FAILED:
        words = json.loads(content[1:])
        raise _ERRORS[words["kind"]](*words["error"])


class Link:
    """The site's end of a connection to one holder on a worker."""

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
        """Send a request. Its answer is returned by `receive`."""
        self._requests.put(request)

    def receive(self) -> bytes:
        """Return the answer to the earliest unanswered request. Raises WorkerLost if the connection is lost,
        or the error that the holder returned."""
        try:
            answer: bytes = next(self._answers)
        except StopIteration:
            raise WorkerLost("it hung up") from None
        except grpc.RpcError as error:
            raise WorkerLost(str(error.details())) from None
        raise_failed(answer)
        return answer

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        self._channel.close()


class HoldHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The holder's end of the connection: a gRPC handler for one caller, which must send the token."""

    def __init__(self, token: str, serve: Any, begun: Any, ended: Any) -> None:
        """Prepare to serve a single caller.

        Args:
            token: token that the caller must send.
            serve: returns the answer to a request.
            begun: called when the caller connects.
            ended: called when the caller disconnects.
        """
        self._token, self._serve, self._begun, self._ended = token, serve, begun, ended
        self._called = False

    def service(self, details: Any) -> Any:
        """Return the handler for an incoming call. Returns None, which makes gRPC reject the call, if the
        token is missing or wrong or if the holder has already been called."""
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


# ---- The holder on a worker -----------------------------------------------------------------------------


CALLED_WITHIN = 60.0  # seconds within which a holder must be called
_held: dict[str, Any] = {}
"""Maps tokens to this process's servers, which would otherwise be garbage-collected."""


@dataclass(frozen=True)
class Load:
    """Task for a worker: the rows to hold, and the terms to apply. host: host name for connections to the
    worker; source: files to read, '' if the rows are passed as parts; keep: False to only check that the rows
    fit; sizes: number of rows of each file."""

    party: str
    terms: str
    ranges: tuple[Range, ...]
    threads: int
    host: str
    source: str = ""
    options: ReadOptions = DEFAULT_OPTIONS
    names: Names | None = None
    keep: bool = True
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Held:
    """A worker's report about its rows. door: where to call the holder; undeclared: columns with undeclared
    categories, each with one category and the number of rows; labels: values of a two-valued text label;
    groups: distinct group keys, uint64; fault: error, encoded by `failed`, if the rows could not be held."""

    rows: int = 0
    door: Door | None = None
    undeclared: tuple[tuple[str, str, int], ...] = ()
    labels: tuple[str, ...] = ()
    groups: bytes = b""
    fault: bytes = b""


def hold(load: Load, *parts: Any) -> Held:
    """Read rows and hold them until the caller disconnects. parts: tables with the rows, if they are not read
    from files. Errors are returned in the report."""
    try:
        keep_freed_memory()
        _stop_profiler()
        terms, ranges = Terms.from_canonical(load.terms), load.ranges
        if parts:
            table: Table = pa.concat_tables([as_table(part) for part in parts], promote_options="permissive")
        else:
            table = Files(load.source, load.options).rows(ranges, load.sizes)
        if load.names is not None:
            table = named(table, load.names, "names").under(terms.columns)
        if table.num_rows != (due := sum(last - first for first, last in ranges)):
            raise ConfigError(
                "worker-rows-changed",
                f"the worker found {table.num_rows} rows, but {due} were counted; try again",
            )
        read = partial(to_shard, table, site=load.party, ranges=ranges)
        shard = read(terms)
        strange = tuple(undeclared(table, terms.blocks.columns_of(load.party)))
        groups = b"" if shard.group is None else np.unique(shard.group).tobytes()
        held = Held(shard.rows, None, strange, label_values(table, terms), groups)
        if not load.keep:
            return held
        rows = [shard]
        del shard
        holder = holder_for(lambda terms: rows.pop() if rows else read(terms), load.party, load.threads)
        answered = partial(_answered, holder(terms, b""))
        give_back()
        return replace(held, door=_serve(answered, load.host))
    except FedboostError as error:
        return Held(fault=failed(error))
    except Exception as error:  # noqa: BLE001 - any error of a library is reported in one line
        return Held(fault=failed(_of_library(error)))


def _stop_profiler() -> None:
    """Stop the profiler of this Dask worker. In Python 3.11, it may stop the whole process for good while
    another thread creates or drops objects of gRPC (python/cpython#106883)."""
    if sys.version_info >= (3, 12) or "distributed" not in sys.modules:
        return
    try:
        worker = sys.modules["distributed"].get_worker()
    except ValueError:  # this process is not a worker
        return
    if (profiler := worker.periodic_callbacks.get("profile")) is not None:
        worker.loop.add_callback(profiler.stop)


def _answered(holder: Holder, request: bytes) -> bytes:
    kind, content = request[:1], request[1:]
    try:
        if kind == GO_TO:
            holder.go_to(cast(BoostingState, cast(Introduce, decode_to_party(content)).state))
            return _DONE
        if kind == HASH:
            return _DONE + holder.rows_hashed(content)
        query = cast(OfTurn, cast(Ask, decode_to_party(content)).query)
        if kind == ANSWER:
            return packed(finished(holder.answering(query)), query)
        if not isinstance(query, VoteQuery) or not isinstance(holder, HorizontalHolder):
            raise PeerError("worker-request-invalid", "its own histograms were requested without a vote")
        return _DONE + holder.own_histograms(query).tobytes()
    except FedboostError as error:
        return failed(error)
    except Exception as error:  # noqa: BLE001 - otherwise the caller would think that the worker is lost
        return failed(_of_library(error))


def _of_library(error: Exception) -> Refused:
    return Refused(
        "worker-hold-failed",
        "its rows cannot be held by a worker",
        f"{type(error).__name__}: {quoted(str(error))}",
    )


def finished(answering: Answering) -> Int64:
    """Return the integers of an answer, int64 [query.cells]. Raises PeerError if the answer needs relays from
    other parties."""
    try:
        next(answering)
    except StopIteration as end:
        values: Int64 = end.value
        return values
    raise PeerError(
        "worker-request-invalid", "the answer needs relays from other parties, which workers do not receive"
    )


def _serve(answered: Callable[[bytes], bytes], host: str) -> Door:
    """Start a server for one caller, at a port that the system chooses, and return its `Door`."""
    token = secrets.token_hex(32)
    server = grpc.server(ThreadPoolExecutor(1, "fedboost"), options=OPTIONS)
    called = threading.Event()

    def ended() -> None:
        _held.pop(token, None)
        called.set()
        server.stop(1.0)

    server.add_generic_rpc_handlers((HoldHandler(token, answered, called.set, ended),))
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
    """Return a key for one connection, its certificate, and the root that signed it, all in PEM."""
    from cryptography.hazmat.primitives import serialization

    now = datetime.now(UTC)
    root_key, root = new_root("workers", now, 2)
    key, certificate = issue(root_key, root, "worker", "aggregator", now, 1)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form), to_pem(certificate).decode(), to_pem(root).decode()
