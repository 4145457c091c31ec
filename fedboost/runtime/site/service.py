"""The scoring service of a site (`fedboost serve`): rows are scored one by one with the parts of a model that
the parties keep.

The label holder serves a REST API, and asks the other parties of the model; these answer about their rows
(`holders.scoring`). All connect to the aggregator, which passes sealed frames on. The service runs beside
`fedboost party`, with a store of its own.

Guarantees: an answer is charged and recorded before it leaves, so a process that is killed loses no charge. A
request is answered, or fails with a reason: if a party disconnects or does not answer in time, the client is
told. Scores equal those of a joint prediction, to the last bit.
Raises: ConfigError for files, models and policies that do not allow the service."""

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

from fedboost.errors import ConfigError, PeerError, Refused, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.threads import Threads
from fedboost.holders import scoring
from fedboost.holders.scoring import FeatureEnd, Link, Scorer, Scores, TokenTable
from fedboost.holders.shard import Shard
from fedboost.privacy.packing import number
from fedboost.protocol.key_exchange import Credentials
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import DialAttempts
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import PartyConfig, ServeConfig
from fedboost.runtime.site.models import NAME_CHARS, PartFolder
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.site.store import OWNER_ALONE, make_folder
from fedboost.terms.terms import Terms
from fedboost.wire.messages import LinkFrame, decode_link, encode_link

# ---- What a service remembers: secrets, charges and requests --------------------------------------------
# Guarantees: a charge is in the file before the answer is computed. One process uses the file at a time.

LISTS_A_DAY = 10
"""Maximum number of times per day that a site sends the list of its ids, blinded, or takes another's."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (model TEXT PRIMARY KEY, secret BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, ids INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS requests (time TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL,
    who TEXT NOT NULL, ids INTEGER NOT NULL);
"""


class ServiceStore:
    """The store of a site's scoring service, in the site's state folder. Raises ConfigError if it cannot be
    used, or if another process uses it."""

    def __init__(self, config: PartyConfig) -> None:
        self.folder = memory_path(config).parent / "serve"
        path = self.folder / "service.sqlite"
        with file_errors(path, "cannot use this file"):
            make_folder(self.folder)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE))
        try:
            # Used by one thread at a time. Autocommit: each charge is a transaction.
            self._file = sqlite3.connect(path, timeout=0.1, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
            self._file.execute("UPDATE totals SET ids = ids WHERE name = ''")  # takes the lock, for good
        except sqlite3.OperationalError as error:
            raise ConfigError(
                "serve-in-use", f"{path}: another `fedboost serve` of this site uses this file ({error})"
            ) from None
        except sqlite3.DatabaseError as error:
            raise ConfigError("serve-store-damaged", f"{path} is damaged: {error}") from None

    def close(self) -> None:
        self._file.close()

    def secret(self, model: str) -> bytes:
        """Return the secret for a model, which is drawn when it is first needed."""
        self._file.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (model, os.urandom(32)))
        ((secret,),) = self._file.execute("SELECT secret FROM secrets WHERE model = ?", (model,))
        return bytes(secret)

    def charge(self, name: str, ids: int, most: int, about: tuple[str, str, str]) -> None:
        """Add ids to the total of this name, and record the request. Raises Refused if the total would exceed
        `most`. about: kind of request, model, and who asked."""
        kind, model, who = about
        with self._transaction():
            total = self.total(name) + ids
            if total > most:
                raise Refused(
                    "score-limit",
                    f"{who} has asked about {total - ids} row ids; {ids} more exceed the limit of {most}",
                )
            self._file.execute("INSERT OR REPLACE INTO totals VALUES (?, ?)", (name, total))
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._file.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", (now, kind, model, who, ids))

    def total(self, name: str) -> int:
        """Return the number of ids charged to this name."""
        row = self._file.execute("SELECT ids FROM totals WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def begin_list(self, kind: str, model: str, who: str) -> None:
        """Record that a list of ids begins. Raises Refused if there were too many of this kind in the last
        day."""
        since = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
        query = "SELECT count(*) FROM requests WHERE kind = ? AND time > ?"
        if self._file.execute(query, (kind, since)).fetchone()[0] >= LISTS_A_DAY:
            raise Refused(
                "score-many-lists",
                f"this site sends or takes a list of ids at most {LISTS_A_DAY} times a day",
            )
        self.charge(kind, 0, 0, (kind, model, who))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")


@dataclass(frozen=True)
class SiteMeter:
    """Limits on what a feature holder answers, in its store."""

    _store: ServiceStore
    _config: ServeConfig
    _model: str
    _peer: str

    @property
    def fewest(self) -> int:
        return self._config.min_known_ids

    def charge(self, ids: int) -> None:
        self._store.charge("", ids, self._config.max_ids, ("ids", self._model, self._peer))

    def list_ids(self) -> None:
        self._store.begin_list("list", self._model, self._peer)


# ---- The connection to the aggregator, and the links over it --------------------------------------------


@dataclass(eq=False)
class Peer:
    """Another party of the model that is connected. met: True once it has greeted."""

    name: str
    link: Link
    met: bool = False


class Service:
    """Base class of both ends: keeps a connection to the aggregator, greets the other parties, and takes
    their messages in order. Subclasses define `take` and `left`."""

    def __init__(
        self, config: PartyConfig, bundle: Bundle | None, model: PartyModel, store: ServiceStore, log: Any
    ) -> None:
        if bundle is None:
            raise ConfigError(
                "serve-keys-missing", f"{config.file}: a scoring service needs keys; add `keys` to this file"
            )
        self.config, self.model, self.store = config, model, store
        self.terms: Terms = terms_to_predict(model, 1, 1).changed(repeated_ids=True)
        self.log = log.bind(model=model.id[:NAME_CHARS])
        self.id = bytes.fromhex(model.id)
        self._bundle = bundle
        (self.block,) = model.terms.blocks
        self.threads = Threads(1)  # a request is short, and the worker is one thread
        self.worker = ThreadPoolExecutor(1, "score")
        """Computes one thing after the other, beside the event loop."""
        self.peers: dict[str, Peer] = {}
        self._call: Any = None
        self._writing = asyncio.Lock()

    async def take(self, peer: Peer, content: bytes) -> None:
        """Handle a message of a party."""
        raise NotImplementedError

    def left(self, peer: Peer) -> None:
        """A party is no longer connected."""

    def met(self, peer: Peer) -> bytes | None:
        """A party has greeted. Returns the first message to it, if any."""
        return None

    async def run(self, wait: float) -> None:
        """Serve until cancelled. wait: seconds to wait for an aggregator that does not answer. Raises
        ConfigError if it does not answer in time, or refuses this party."""
        servers = tuple(server for server in self.config.servers if not server.adder)
        advice = "check `aggregator` in this site's file"
        dialling, attended = DialAttempts(servers, wait, self.log, advice), False
        try:
            while True:
                server, began = dialling.server, asyncio.get_running_loop().time()
                async with channel.dial(server.address, self._bundle) as opened:
                    if not await dialling.reached(opened, self._bundle, attended):
                        continue
                    attended |= await self._attend(opened, str(server), attended)
                dialling.lost(asyncio.get_running_loop().time() - began)
                await asyncio.sleep(1.0)
        finally:
            self.worker.shutdown(wait=False, cancel_futures=True)

    async def _attend(self, opened: Any, server: str, attended: bool) -> bool:
        """Take frames until the connection is lost. Returns True if the aggregator admitted this party."""
        metadata = ((channel.PARTY_KEY, self.config.party.encode()), *channel.VERSIONS)
        self._call = call = opened.stream_stream(channel.LINK)(metadata=metadata)
        admitted = False
        try:
            await call.write(encode_link(LinkFrame("", self.id)))
            await call.initial_metadata()
            admitted = True
            self.log.info("scoring service is connected", aggregator=server)
            async for data in call:
                await self._hear(decode_link(data))
        except grpc.aio.AioRpcError as error:
            lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if not lost and not (attended or admitted):
                raise channel.explained(error, server) from None
            self.log.info("connection lost", code=error.code().name, details=quoted(error.details() or ""))
        except PeerError as error:  # the next connection begins anew, with other keys
            self.log.warning("a party broke the protocol", reason=quoted(str(error)), code=error.code)
            call.cancel()
        except asyncio.InvalidStateError:
            pass  # the aggregator closed the stream while a frame was being written
        finally:
            for name in [*self.peers]:
                self._leave(name)
        return admitted

    def _leave(self, name: str) -> None:
        peer = self.peers.pop(name, None)
        if peer is not None:
            self.left(peer)
            self.log.info("party gone", party=name)

    async def _hear(self, frame: LinkFrame) -> None:
        if frame.party not in self.block.parties or not self._concerns(frame.party):
            return
        if frame.gone:
            self._leave(frame.party)
            return
        if not frame.content:  # it has connected
            self._leave(frame.party)
            asks = self.config.party == self.block.label_holder
            trust = self._bundle.roots, self._bundle.denied, lambda: datetime.now(UTC)
            about = self.config.party, frame.party, asks, self.id
            link = Link(*about, Credentials(self._bundle.signer, *trust), os.urandom)
            self.peers[frame.party] = Peer(frame.party, link)
            await self._write(frame.party, link.greeting)
            return
        peer = self.peers.get(frame.party)
        if peer is None:
            return
        if not peer.met:
            peer.link.meet(frame.content)
            peer.met = True
            self.log.info("party here", party=peer.name)
            if (first := self.met(peer)) is not None:
                await self.say(peer, first)
            return
        await self.take(peer, peer.link.open(frame.content))

    def _concerns(self, party: str) -> bool:
        """Return whether this site exchanges messages with the party: one of them is the label holder."""
        return self.block.label_holder in (self.config.party, party) and party != self.config.party

    async def say(self, peer: Peer, content: bytes) -> None:
        """Send a party a message. Messages are sealed in the order in which they are written."""
        async with self._writing:
            if self.peers.get(peer.name) is peer:
                await self._call.write(encode_link(LinkFrame(peer.name, peer.link.seal(content))))

    async def _write(self, party: str, content: bytes) -> None:
        async with self._writing:
            await self._call.write(encode_link(LinkFrame(party, content)))

    async def beside(self, work: Callable[[], Any]) -> Any:
        """Run work in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.worker, work)


# ---- A feature holder's service -------------------------------------------------------------------------


class FeatureService(Service):
    """Answers the label holder about this site's rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config, model = self.config, self.model
        if config.workers is not None:
            raise ConfigError(
                "serve-workers", f"{config.file}: `fedboost serve` reads rows itself; remove [workers]"
            )
        shard = SiteRows(config, self.log).read(self.terms.changed(repeated_ids=False))
        meter = SiteMeter(self.store, config.serve, model.id, self.block.label_holder)
        self._file = self.store.folder / f"{model.id[:NAME_CHARS]}.tokens.npz"
        own = self.terms, config.party, model.booster, self.id, shard, self.store.secret(model.id)
        self._end = FeatureEnd(*own, meter, self.threads, _read_table(self._file))
        self._kept = self._end.table
        left = config.serve.max_ids - self.store.total("")
        self.log.info("scoring service answers about its rows", rows=shard.rows, ids_left=left)

    async def take(self, peer: Peer, content: bytes) -> None:
        answers = self._end.take(content)
        while some := await self.beside(lambda: [*itertools.islice(answers, 2)]):
            if self._end.table is not self._kept:
                self._kept = self._end.table
                await self.beside(self._keep)
            for answer in some:
                if answer[0] == scoring.REFUSAL:
                    _, code, reason = scoring.fields_of(answer, scoring.REFUSAL, 3, peer.name)
                    self.log.warning("request refused", code=code.decode(), reason=reason.decode())
                await self.say(peer, answer)
            if len(some) < 2:
                return

    def _keep(self) -> None:
        assert self._kept is not None
        _write_table(self._file, self._kept)
        self.log.info("token table stored", file=str(self._file), ids=self._kept.rows.size)


def _read_table(path: Path) -> TokenTable | None:
    """Return a stored token table, or None if there is none, or none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return TokenTable(stored["tokens"], stored["rows"], stored["made_for"].tobytes())
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _write_table(path: Path, table: TokenTable) -> None:
    data = BytesIO()
    made_for = np.frombuffer(table.made_for, np.uint8)
    np.savez(data, tokens=table.tokens, rows=table.rows, made_for=made_for)
    write_atomically(path, data.getvalue(), OWNER_ALONE)


# ---- The label holder's service -------------------------------------------------------------------------


@dataclass(eq=False)
class Asked:
    """What the label holder knows of another party. missing: its leaf bits of a row of missing values, once
    it is ready; waiting: requests that it has not answered."""

    missing: bytes = b""
    is_ready: bool = False
    lists: bool | None = None
    """Whether its list is multiplied; None until it begins."""
    waiting: dict[bytes, asyncio.Future[bytes]] = field(default_factory=dict)


class LabelService(Service):
    """Scores rows for clients, together with the other parties."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        secret, most = self.store.secret(self.model.id), self.config.policy.max_foreign_ids
        self._scorer = Scorer(self.terms, self.model.booster, self.id, secret, self.threads, most)
        self._asked = {party: Asked() for party in self._scorer.others}
        self._numbers = itertools.count(1)
        columns = self.terms.blocks.columns_of(self.config.party).unlabelled()
        self.columns = tuple(dict.fromkeys([*columns.others, *columns.features]))
        """Names of the columns of a row."""

    def met(self, peer: Peer) -> bytes | None:
        if peer.name not in self._asked:
            return None
        self._asked[peer.name].lists = None
        return self._scorer.hello(peer.name)

    def left(self, peer: Peer) -> None:
        if (asked := self._asked.get(peer.name)) is None:
            return
        asked.is_ready = False
        for future in asked.waiting.values():
            if not future.done():
                future.set_exception(Refused("score-party-gone", f"party {peer.name} has disconnected"))

    @property
    def ready(self) -> dict[str, bool]:
        """Whether each other party can answer."""
        return {party: asked.is_ready for party, asked in self._asked.items()}

    async def take(self, peer: Peer, content: bytes) -> None:
        asked = self._asked.get(peer.name)
        if asked is None:
            return
        match content[0] if content else None:
            case scoring.LIST:
                if asked.lists is None:
                    asked.lists = self._takes_list(peer.name)
                if asked.lists:
                    work = partial(self._scorer.multiplied, content, peer.name)
                    await self.say(peer, await self.beside(work))
            case scoring.READY:
                (asked.missing,) = scoring.fields_of(content, scoring.READY, 1, peer.name)
                asked.is_ready = True
                self.log.info("party answers", party=peer.name)
            case scoring.REFUSAL:
                about, code, reason = scoring.fields_of(content, scoring.REFUSAL, 3, peer.name)
                error = Refused(
                    quoted(code.decode(errors="replace"), 60),
                    f"party {peer.name} refuses: {quoted(reason.decode(errors='replace'))}",
                )
                if about == number(0):
                    self.log.warning("a party refuses", party=peer.name, reason=str(error))
                elif (future := asked.waiting.pop(about, None)) is not None and not future.done():
                    future.set_exception(error)
            case _:
                about, bits = scoring.fields_of(content, scoring.ANSWER, 2, peer.name)
                if (future := asked.waiting.pop(about, None)) is not None and not future.done():
                    future.set_result(bits)

    def _takes_list(self, party: str) -> bool:
        """Record that a party lists its ids, unless it has done so too often: it could enter ids that it
        guessed, and others each time."""
        try:
            self.store.begin_list(f"list of {party}", self.model.id, party)
        except Refused as error:
            self.log.warning("a list of ids is not taken", party=party, reason=str(error))
            return False
        return True

    async def score(self, table: pa.Table, client: str, reasons: bool = False) -> Scores:
        """Score rows with the label holder's columns and row ids. Raises Refused if a limit is exceeded, a
        party refuses, or it does not answer and partial scores are not allowed; ConfigError for rows that do
        not fit."""
        rows, points, of_row = await self.beside(partial(self._prepare, table, client))
        parties = self._scorer.others
        asking = (self._ask(party, points) for party in parties)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        told: dict[str, bytes] = {}
        without = []
        for party, answer in zip(parties, answers, strict=True):
            if isinstance(answer, bytes):
                told[party] = answer
                continue
            away = isinstance(answer, Refused) and answer.code in AWAY
            if not (away and self.config.serve.partial and self._asked[party].missing):
                raise answer
            told[party] = self._asked[party].missing
            without.append(party)
        scores: Scores = await self.beside(lambda: self._scorer.score(rows, of_row, told, without, reasons))
        missing = {"without": ", ".join(without)} if without else {}
        self.log.info("rows scored", client=client, rows=rows.rows, **missing)
        return scores

    def _prepare(self, table: pa.Table, client: str) -> tuple[Shard, bytes, Int64]:
        """Read the rows of a request, charge the client, and return the points of the rows' ids and the
        place of each row's id among them."""
        rows = to_shard(as_table(table), self.terms, self.config.party)
        points, of_row = self._scorer.question(rows.ids or ())
        most, about = self.config.serve.max_ids_per_client, ("client", self.model.id, client)
        self.store.charge(f"client {client}", int(of_row.max()) + 1, most, about)
        return rows, points, of_row

    async def _ask(self, party: str, points: bytes) -> bytes:
        """Return a party's leaf bits. Raises Refused if it is not connected, does not answer in time, or
        refuses."""
        peer, asked = self.peers.get(party), self._asked[party]
        if peer is None or not asked.is_ready:
            raise Refused("score-party-away", f"party {party} is not connected, or not ready yet")
        about = number(next(self._numbers))
        asked.waiting[about] = future = asyncio.get_running_loop().create_future()
        try:
            await self.say(peer, scoring.message(scoring.ASK, about, points))
            async with asyncio.timeout(self.config.serve.timeout):
                bits: bytes = await future
                return bits
        except TimeoutError:
            limit = f"{self.config.serve.timeout:g} s"
            raise Refused("score-party-late", f"party {party} did not answer within {limit}") from None
        finally:
            asked.waiting.pop(about, None)


AWAY = "score-party-away", "score-party-gone", "score-party-late"
"""Codes of the errors for parties that do not answer."""


# ---- Start ----------------------------------------------------------------------------------------------

_OWN_LIMITS = frozenset({"max_predicted_rows", "min_common_rows", "max_sessions", "approval"})
"""Rules of a policy that count sessions and their rows. A service has limits of its own instead."""


def part_of(config: PartyConfig, file: Path | None) -> PartyModel:
    """Return the site's part of the model to serve: in this file, or the only one that the site keeps."""
    files = [file] if file is not None else PartFolder(config).files()
    if len(files) != 1:
        raise ConfigError(
            "serve-which-model",
            f"this site keeps {len(files)} model parts in {PartFolder(config).folder}; name one with --model",
        )
    model = PartyModel.load(files[0])
    if model.party != config.party:
        raise ConfigError("part-mismatch", f"{files[0]} is not a part of party {config.party!r}")
    return model


def check_allowed(config: PartyConfig, terms: Terms) -> None:
    """Raise ConfigError unless the policy of a feature holder allows predictions with this model."""
    for breach in config.policy.breaches(terms, "", config.party):
        if breach.rule not in _OWN_LIMITS:
            raise ConfigError("serve-policy", f"{config.file}: {breach.refusal(config.party).public}")
    if not config.serve.max_ids:
        raise ConfigError(
            "serve-off", f"{config.file}: this site answers nothing; set `max_ids` in [serve] to allow it"
        )


async def serve(
    config: PartyConfig,
    bundle: Bundle | None,
    model: PartyModel,
    wait: float,
    log: Any,
    app_of: Callable[["LabelService"], Any],
) -> None:
    """Run the scoring service of a site until cancelled. app_of: returns the web application of a label
    holder's service. Raises ConfigError if the service cannot run."""
    store = ServiceStore(config)
    try:
        if config.party != model.terms.vertical.label_holder:
            check_allowed(config, terms_to_predict(model, 1))
            await FeatureService(config, bundle, model, store, log).run(wait)
            return
        service = LabelService(config, bundle, model, store, log)
        app = app_of(service)
        await app.start()
        try:
            await service.run(wait)
        finally:
            await app.stop()
    finally:
        store.close()
