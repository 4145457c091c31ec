"""What runs on a worker: it reads some of a site's rows, holds them, and answers for them.

Promises: the process that called is the only one that is served; once it hangs up, or does not call within
CALLED_WITHIN, the rows are dropped. A fault of rows or files is told as the site itself would be told it.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
import numpy as np

from fedboost.boosting.queries.trees import VoteQuery
from fedboost.boosting.state import BoostingState
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.fixedpoint import Int64
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Ranges, Shard
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy.identity.certificates import to_pem
from fedboost.privacy.identity.issue import issue, new_root
from fedboost.protocol.contracts import Answering, Holder
from fedboost.runtime.config import is_loopback
from fedboost.runtime.data.allocator import give_back, keep_freed_memory
from fedboost.runtime.data.database import ReadOptions
from fedboost.runtime.data.shard import label_values, to_shard, undeclared
from fedboost.runtime.data.table import Table, as_table
from fedboost.runtime.site.rows import Names, named
from fedboost.runtime.workers import link
from fedboost.runtime.workers.link import Door
from fedboost.runtime.workers.source import Files, Range
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

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
    its rows; fault: why it holds nothing, an answer of `link.failed`."""

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
        return Held(fault=link.failed(error))
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told in one line
        return Held(fault=link.failed(_of_library(error)))


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
            return link.failed(error)
        except Exception as error:  # noqa: BLE001 - else the caller would take it for the end of a worker
            return link.failed(_of_library(error))
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
    query = link.query_in(content)
    return link.packed(finished(holder.answering(query)), query)


def _histograms(holder: Holder, content: bytes) -> bytes:
    query = link.query_in(content)
    if not isinstance(query, VoteQuery) or not isinstance(holder, HorizontalHolder):
        raise PeerError("own histograms are asked for where there is no vote")
    return link.done(holder.own_histograms(query).tobytes())


def _go_to(holder: Holder, content: bytes) -> bytes:
    holder.go_to(link.state_in(content))
    return link.done()


def _hash(holder: Holder, content: bytes) -> bytes:
    return link.done(holder.rows_hashed(content))


_KINDS: dict[bytes, Callable[[Holder, bytes], bytes]] = {
    link.ANSWER: _answer,
    link.HISTOGRAMS: _histograms,
    link.GO_TO: _go_to,
    link.HASH: _hash,
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
    server = grpc.server(ThreadPoolExecutor(1, "fedboost"), options=link.OPTIONS)
    called = threading.Event()

    def ended() -> None:
        _held.pop(token, None)
        last_done.pop(party, None)
        called.set()
        server.stop(1.0)

    server.add_generic_rpc_handlers((link.Doorkeeper(token, kept.serve, called.set, ended),))
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
