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
from fedboost.runtime.data.database import AS_USUAL, ReadOptions
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
    """A worker is gone, or no longer answers. Who holds its rows rebuilds them elsewhere."""


@dataclass(frozen=True)
class Worker:
    """A worker: its address at the engine, its host, its threads, and the bytes of memory that it may use, 0
    if nobody says."""

    address: str
    host: str
    threads: int
    memory: int


# ---- Rows of a site as its workers read them: Parquet or CSV files by row range, or parts in memory -----
# Rows come in the order of the files' names, so that the place of a row in the whole table does not depend on
# who reads it; of Parquet files only the row groups and columns that are wanted are read. Files with other
# columns than the first, and CSV files that disagree whether a column is text, are refused (ConfigError that
# names file and column).


_TEXT_FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


class Range(NamedTuple):
    """Rows of the whole table from `first` to before `last`."""

    first: int
    last: int


class Heads(NamedTuple):
    """What is known of files before their rows are read: how many rows; the columns with their types,
    serialised by Arrow; the rows of each file; and why they cannot be read, public and for the site alone."""

    rows: int = 0
    columns: bytes = b""
    sizes: tuple[int, ...] = ()
    fault: tuple[str, str] = ("", "")


class Files:
    """The files of a site. ConfigError if there are none, or cannot be read."""

    def __init__(self, source: str, options: ReadOptions) -> None:
        self._options = options
        self._source = source
        self._parquet: ParquetFiles | None = None
        self._texts, others = _sorted_out(source)
        if self._texts and others and not any(name.lower().endswith(TOGETHER) for name in others):
            raise ConfigError(
                f"{source}: holds CSV files, and {others[0]}: give the rows a folder of their own"
            )
        if not self._texts or others:
            self._texts = []
            found = source_at(source, options)
            if isinstance(found, ParquetFiles):
                self._parquet = found
            elif isinstance(found, Delimited) and found.location.path is not None:
                self._texts = [str(found.location.path)]
            else:
                raise ConfigError(f"{found.shown}: workers read Parquet and CSV files alone")

    def heads(self) -> Heads:
        """How many rows there are, and of which columns. Of CSV files every one is read."""
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
        """These rows. sizes: those of the files, if they are known: CSV files without such rows are not read.
        ConfigError where the files here have others."""
        if self._parquet is not None:
            if sizes and tuple(sizes) != self._parquet.sizes:
                raise ConfigError(
                    f"{self._source}: has other files or rows here than where they were counted: all workers "
                    f"must see the same files, and nobody may change them meanwhile"
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
                raise ConfigError(f"{path}: has changed while the rows were read; try again")
            end += table.num_rows
            for first, last in ranges:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    pieces.append(table.slice(low - begin, high - low))
        return pa.concat_tables(_as_one(pieces))

    def group_end(self, column: str, at: int) -> int:
        """The first row from `at` on that is of another group than the one before it, where rows of a group
        stand together."""
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
    """The heads of a site's files, as a worker sees them."""
    try:
        return Files(source, options).heads()
    except ConfigError as error:
        return Heads(fault=(error.public, error.detail))


def stamp_of(source: str) -> list[tuple[str, int, int, int]]:
    """What tells that files have changed: path, time of the last change, size and inode of each."""
    texts, others = _sorted_out(source)
    paths = tuple(map(Path, texts)) if texts and not others else local_files(source)
    states = ((path, path.stat()) for path in paths if path.is_file())
    return [(str(path), state.st_mtime_ns, state.st_size, state.st_ino) for path, state in states]


def group_end_of(source: str, options: ReadOptions, column: str, at: int) -> int:
    """See `Files.group_end`."""
    return Files(source, options).group_end(column, at)


def _sorted_out(source: str) -> tuple[list[str], list[str]]:
    """The CSV files of a folder or a glob, in the order of their names, and its other files; hidden ones
    apart."""
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
    """ConfigError unless all files have the columns of the first, and agree which are text."""
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
                f"{one}: column {name!r} is {kind} here, {kind_there} in {other}: write the rows as Parquet, "
                f"or all of its values as one type"
            )


def _joint(heads: "Sequence[pa.Schema]") -> "pa.Schema":
    """The columns of all files: of each the first type that is not of missing values alone."""
    fields = []
    for name in heads[0].names:
        own = [head.field(name) for head in heads]
        fields.append(next((field for field in own if not pa.types.is_null(field.type)), own[0]))
    return pa.schema(fields)


def _as_one(tables: "Sequence[pa.Table]") -> "list[pa.Table]":
    """Tables of the same columns, in the same order and of types that go together."""
    names = tables[0].column_names
    wide = pa.unify_schemas(
        [table.select(names).schema.remove_metadata() for table in tables], promote_options="permissive"
    )
    return [table.select(names).cast(wide) for table in tables]


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
    """The query of a request."""
    return cast(OfTurn, cast(Ask, decode_to_party(content)).query)


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
_held: dict[str, Any] = {}
"""The servers of this process, by token: what is in no variable would be dropped."""


@dataclass(frozen=True)
class Load:
    """What a worker is to hold: rows of a source, or of parts that are given with it, for a party under
    terms. host: the worker's own, at which it is called; keep: False to look alone whether the rows fit;
    sizes: the rows of each file."""

    party: str
    terms: str
    ranges: tuple[Range, ...]
    threads: int
    host: str
    source: str = ""
    options: ReadOptions = AS_USUAL
    names: Names | None = None
    keep: bool = True
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Held:
    """What a worker holds. undeclared: columns with categories that the terms do not declare, one of them,
    and the rows that have any; labels: the values of a label of two words; groups: the keys of the groups of
    its rows; fault: why it holds nothing, an answer of `hold.failed`."""

    rows: int = 0
    door: Door | None = None
    undeclared: tuple[tuple[str, str, int], ...] = ()
    labels: tuple[str, ...] = ()
    groups: bytes = b""
    fault: bytes = b""


def hold(load: Load, *parts: Any) -> Held:
    """Read rows and hold them until the caller hangs up."""
    try:
        keep_freed_memory()
        terms, ranges = Terms.from_canonical(load.terms), load.ranges
        if parts:
            table: Table = pa.concat_tables([as_table(part) for part in parts], promote_options="permissive")
        else:
            table = Files(load.source, load.options).rows(ranges, load.sizes)
        if load.names is not None:
            table = named(table, load.names, "names").under(terms.columns.row_id)
        if table.num_rows != (due := sum(last - first for first, last in ranges)):
            raise ConfigError(f"{table.num_rows} rows where {due} were counted: they have changed; try again")
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
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told in one line
        return Held(fault=failed(_of_library(error)))


def _answered(holder: Holder, request: bytes) -> bytes:
    """What a holder answers to a request."""
    kind, content = request[:1], request[1:]
    try:
        if kind == GO_TO:
            holder.go_to(cast(BoostingState, cast(Introduce, decode_to_party(content)).state))
            return _DONE
        if kind == HASH:
            return _DONE + holder.rows_hashed(content)
        query = query_in(content)
        if kind == ANSWER:
            return packed(finished(holder.answering(query)), query)
        if not isinstance(query, VoteQuery) or not isinstance(holder, HorizontalHolder):
            raise PeerError("own histograms are asked for where there is no vote")
        return _DONE + holder.own_histograms(query).tobytes()
    except FedboostError as error:
        return failed(error)
    except Exception as error:  # noqa: BLE001 - else the caller would take it for the end of a worker
        return failed(_of_library(error))


def _of_library(error: Exception) -> Refused:
    """What a library has raised, in one line."""
    return Refused("its rows cannot be held at a worker", f"{type(error).__name__}: {quoted(str(error))}")


def finished(answering: Answering) -> Int64:
    """The integers of an answer for which nothing is needed of others. PeerError if something is."""
    try:
        next(answering)
    except StopIteration as end:
        values: Int64 = end.value
        return values
    raise PeerError("an answer needs what other parties relay, which workers do not get")


def _serve(answered: Callable[[bytes], bytes], host: str) -> Door:
    """Let the caller in, at a port that the system chooses."""
    token = secrets.token_hex(32)
    server = grpc.server(ThreadPoolExecutor(1, "fedboost"), options=OPTIONS)
    called = threading.Event()

    def ended() -> None:
        _held.pop(token, None)
        called.set()
        server.stop(1.0)

    server.add_generic_rpc_handlers((Doorkeeper(token, answered, called.set, ended),))
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
