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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

from fedboost.errors import ConfigError, DurabilityError, PeerError, Refused, quoted
from fedboost.fixedpoint import Float64, Int64
from fedboost.holders import scoring
from fedboost.holders.scoring import FeatureEnd, Link, Scorer, TokenTable
from fedboost.holders.shard import Shard
from fedboost.privacy.packing import number
from fedboost.protocol.key_exchange import Credentials
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import DialAttempts
from fedboost.runtime.net.keys import Bundle, read_again
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.models import NAME_CHARS, PartFolder
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.site.store import make_folder
from fedboost.system import OWNER_ALONE, open_private
from fedboost.terms.terms import Terms
from fedboost.wire.messages import LinkFrame, decode_link, encode_link

# ---- What a service remembers: secrets, and charges by the hour -----------------------------------------
# Guarantees: a charge is in the file before the answer is computed. One process uses the file at a time.

IDS = "ids"
"""Name to which a feature holder charges all ids about which it answers."""
DIGEST_BYTES = 32
LISTS_A_DAY = 10
"""Maximum number of times per day that a site sends the list of its ids, blinded, or takes another's."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (model TEXT PRIMARY KEY, secret BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS charges (name TEXT, hour TEXT, model TEXT, requests INTEGER NOT NULL,
    ids INTEGER NOT NULL, PRIMARY KEY (name, hour, model)) WITHOUT ROWID;
"""
_CHARGE = """
INSERT INTO charges VALUES (?, ?, ?, 1, ?)
    ON CONFLICT DO UPDATE SET requests = requests + 1, ids = ids + excluded.ids
"""


class ServiceStore:
    """The store of a site's scoring service, in the site's state folder. Raises ConfigError if it cannot be
    used, or if another process uses it; DurabilityError if a charge cannot be written."""

    def __init__(self, config: PartyConfig) -> None:
        self.folder = memory_path(config).parent / "serve"
        path = self.folder / "service.sqlite"
        with file_errors(path, "cannot use this file"):
            make_folder(self.folder)
            os.close(open_private(path))
        try:
            # Used by one thread at a time. Autocommit: each charge is a transaction.
            self._file = sqlite3.connect(path, timeout=0.1, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
            self._file.execute("UPDATE charges SET ids = ids WHERE name = ''")  # takes the lock, for good
            totals = self._file.execute("SELECT name, sum(ids) FROM charges GROUP BY name").fetchall()
        except sqlite3.OperationalError as error:
            raise ConfigError(
                "serve-in-use", f"{path}: another `fedboost serve` of this site uses this file ({error})"
            ) from None
        except sqlite3.DatabaseError as error:
            raise ConfigError("serve-store-damaged", f"{path} is damaged: {error}") from None
        self.totals = Counter[str](dict(totals))
        """Maps a name to the number of ids that were charged to it."""

    def close(self) -> None:
        self._file.close()

    def secret(self, model: str) -> bytes:
        """Return the secret for a model, which is drawn when it is first needed."""
        self._file.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (model, os.urandom(32)))
        ((secret,),) = self._file.execute("SELECT secret FROM secrets WHERE model = ?", (model,))
        return bytes(secret)

    def charge(self, name: str, model: str, most: int, ids: int) -> None:
        """Record a request about ids, and add them to the total of this name. Raises Refused if the total
        would exceed `most`."""
        before = self.totals[name]
        if before + ids > most:
            raise Refused(
                "score-limit",
                f"there were requests about {before} row ids; {ids} more exceed the limit of {most}",
            )
        try:
            self._file.execute(_CHARGE, (name, _hour(), model, ids))
        except sqlite3.Error as error:
            raise DurabilityError(f"cannot write to {self.folder}: {error}") from None
        self.totals[name] += ids

    def begin_list(self, name: str, model: str) -> None:
        """Record that a list of ids begins. Raises Refused if there were too many of this name in the last
        day."""
        query = "SELECT sum(requests) FROM charges WHERE name = ? AND hour >= ?"
        ((before,),) = self._file.execute(query, (name, _hour(ago=timedelta(days=1))))
        if (before or 0) >= LISTS_A_DAY:
            raise Refused(
                "score-many-lists",
                f"this site sends or takes a list of ids at most {LISTS_A_DAY} times a day",
            )
        self.charge(name, model, 0, 0)


def _hour(ago: timedelta = timedelta()) -> str:
    return f"{datetime.now(UTC) - ago:%Y-%m-%dT%H}"


# ---- The connection to the aggregator, and the links over it --------------------------------------------

UNSENT = 8
"""Maximum number of messages that wait to be written. Beyond that, their senders wait."""


@dataclass(eq=False)
class Peer:
    """Another party of the model that is connected.

    met: True once it has greeted; is_ready: True once it answers the label holder; waiting: requests that it
    has not answered."""

    name: str
    link: Link
    met: bool = False
    is_ready: bool = False
    waiting: dict[bytes, asyncio.Future[bytes | Refused]] = field(default_factory=dict)

    def answered(self, about: bytes, answer: bytes | Refused) -> None:
        """End a request, unless it has ended. about: its number."""
        if (future := self.waiting.pop(about, None)) is not None and not future.done():
            future.set_result(answer)


class Service:
    """Base class of both ends: keeps a connection to the aggregator, greets the other parties, and takes
    their messages in order. Subclasses define `take`."""

    def __init__(
        self, config: PartyConfig, bundle: Bundle, model: PartyModel, store: ServiceStore, log: Any
    ) -> None:
        self.config, self.model, self.store = config, model, store
        self.terms: Terms = terms_to_predict(model, 1, 1).changed(repeated_ids=True)
        self.log = log.bind(model=model.id[:NAME_CHARS])
        self.id = bytes.fromhex(model.id)
        self._bundle = bundle
        (block,) = model.terms.blocks
        self.partners: tuple[str, ...] = (block.label_holder,)
        """Parties that this one exchanges messages with."""
        self.about = self.terms, config.party, model.booster, self.id, store.secret(model.id)
        self.worker = ThreadPoolExecutor(1, "score")
        """Computes one thing after the other, beside the event loop."""
        self.peers: dict[str, Peer] = {}
        self._unsent = asyncio.Queue[tuple[Peer, bytes | None]]()
        """Messages to write; None stands for the greeting."""
        self._attended = False
        """Whether an aggregator has admitted this party."""

    async def take(self, peer: Peer, content: bytes) -> None:
        """Handle a message of a party."""
        raise NotImplementedError

    async def met(self, peer: Peer) -> None:
        """Handle that a party has greeted."""

    async def run(self, wait: float) -> None:
        """Serve until cancelled. wait: seconds to wait for an aggregator that does not answer. Raises
        ConfigError if it does not answer in time, or refuses this party."""
        servers = tuple(server for server in self.config.servers if not server.adder)
        servers = servers or (self.config.direct_server,)  # raises ConfigError: there is none
        advice = "check `aggregator` in this site's file"
        dialling = DialAttempts(servers, wait, self.log, advice)
        try:
            while True:
                if self._attended:
                    self._bundle = read_again(self._bundle)
                server, began = dialling.server, asyncio.get_running_loop().time()
                async with channel.dial(server, self._bundle) as opened:
                    if not await dialling.reached(opened, self._bundle, self._attended):
                        continue
                    await self._attend(opened, str(server))
                dialling.lost(asyncio.get_running_loop().time() - began)
                await asyncio.sleep(1.0)
        finally:
            self.worker.shutdown(wait=False, cancel_futures=True)

    async def _attend(self, opened: Any, server: str) -> None:
        """Take frames until the connection is lost."""
        metadata = ((channel.PARTY_KEY, self.config.party.encode()), *channel.VERSIONS)
        call = opened.stream_stream(channel.LINK)(metadata=metadata)
        self._unsent = asyncio.Queue(UNSENT)
        writer = asyncio.create_task(self._write(call))
        try:
            await call.write(encode_link(LinkFrame("", self.id)))
            await call.initial_metadata()
            self._attended = True
            self.log.info("scoring service is connected", aggregator=server)
            async for data in call:
                await self._hear(decode_link(data))
        except grpc.aio.AioRpcError as error:
            lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if not lost and not self._attended:
                raise channel.explained(error, server) from None
            self.log.info("connection lost", code=error.code().name, details=quoted(error.details() or ""))
        except PeerError as error:  # the next connection begins anew, with other keys
            self.log.warning("a party broke the protocol", reason=quoted(str(error)), code=error.code)
            call.cancel()
        except asyncio.InvalidStateError:
            pass  # the aggregator closed the stream while a frame was being written
        finally:
            writer.cancel()
            for name in [*self.peers]:
                self._leave(name)

    def _leave(self, name: str) -> None:
        if (peer := self.peers.pop(name, None)) is not None:
            for about in [*peer.waiting]:
                peer.answered(about, Refused("score-party-gone", f"party {name} has disconnected"))
            self.log.info("party gone", party=name)

    async def _hear(self, frame: LinkFrame) -> None:
        peer = self.peers.get(frame.party)
        if frame.party not in self.partners:
            return
        if frame.gone:
            self._leave(frame.party)
        elif not frame.content:  # it has connected
            self._leave(frame.party)
            asks = self.config.party == self.model.terms.vertical.label_holder
            trust = self._bundle.roots, self._bundle.denied, lambda: datetime.now(UTC)
            about = self.config.party, frame.party, asks, self.id
            link = Link(*about, Credentials(self._bundle.signer, *trust), os.urandom)
            self.peers[frame.party] = peer = Peer(frame.party, link)
            await self._unsent.put((peer, None))
        elif peer is not None:
            try:
                await self._handle(peer, frame.content)
            except (PeerError, Refused) as error:
                if isinstance(error, PeerError):
                    if len(self.partners) == 1:
                        raise
                    await self._unsent.put((peer, None))  # the party cannot open it, and connects anew
                self.log.warning("a party is left out", party=peer.name, code=error.code, reason=str(error))
                self._leave(peer.name)

    async def _handle(self, peer: Peer, content: bytes) -> None:
        if not peer.met:
            peer.link.meet(content)
            peer.met = True
            self.log.info("party here", party=peer.name)
            await self.met(peer)
        elif (whole := peer.link.open(content)) is not None:
            await self.take(peer, whole)

    async def say(self, peer: Peer, content: bytes) -> None:
        """Send a party a message."""
        await self._unsent.put((peer, content))

    async def _write(self, call: Any) -> None:
        """Write messages until cancelled; once the connection is lost, drop them. This is a task of its own,
        because gRPC ends a call if a task that writes is cancelled."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                peer, content = await self._unsent.get()
                for data in [peer.link.greeting] if content is None else peer.link.seal(content):
                    if content is None or self.peers.get(peer.name) is peer:
                        await call.write(encode_link(LinkFrame(peer.name, data)))
        while True:  # else the reader of the call could wait for room, and would not see its end
            await self._unsent.get()

    async def beside(self, work: Callable[[], Any]) -> Any:
        """Run work in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.worker, work)


# ---- A feature holder's service -------------------------------------------------------------------------


class FeatureService(Service):
    """Answers the label holder about this site's rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config, model, limits = self.config, self.model, self.config.serve
        if config.data is None or config.workers is not None:
            raise ConfigError(
                "serve-rows",
                f"{config.file}: `fedboost serve` reads rows itself; set `data` without [workers]",
            )
        shard = SiteRows(config, self.log).read(self.terms.changed(repeated_ids=False))
        self._file = self.store.folder / f"{model.id[:NAME_CHARS]}.tokens"
        self._end = FeatureEnd(
            *self.about,
            rows=shard,
            fewest=limits.min_known_ids,
            charge=partial(self.store.charge, IDS, model.id, limits.max_ids),
            begin_list=partial(self.store.begin_list, "list", model.id),
            table=_read_table(self._file, shard.rows),
        )
        left = limits.max_ids - self.store.totals[IDS]
        self.log.info("scoring service answers about its rows", rows=shard.rows, ids_left=left)

    async def take(self, peer: Peer, content: bytes) -> None:
        answer = await self.beside(partial(self._answer, content))
        if answer[0] == scoring.REFUSAL:
            _, code, reason = scoring.fields_of(answer, scoring.REFUSAL, 3, peer.name)
            self.log.warning("request refused", code=code.decode(), reason=reason.decode())
        await self.say(peer, answer)

    def _answer(self, content: bytes) -> bytes:
        earlier = self._end.table
        answer = self._end.take(content)
        if (table := self._end.table) is not None and table is not earlier:
            write_atomically(self._file, table.made_for + table.tokens.tobytes(), OWNER_ALONE)
            self.log.info("token table stored", file=str(self._file), ids=table.tokens.size)
        return answer


def _read_table(path: Path, rows: int) -> TokenTable | None:
    """Return the stored token table of so many rows, or None if there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != DIGEST_BYTES + rows * scoring.TOKEN_BYTES:
        return None
    return TokenTable(np.frombuffer(data, f"S{scoring.TOKEN_BYTES}", rows, DIGEST_BYTES), data[:DIGEST_BYTES])


# ---- The label holder's service -------------------------------------------------------------------------


class LabelService(Service):
    """Scores rows for clients, together with the other parties."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._scorer = Scorer(
            *self.about,
            most_ids=self.config.policy.max_foreign_ids,
            begin_list=lambda party: self.store.begin_list(f"list of {party}", self.model.id),
        )
        self.partners = self._scorer.others
        self._missing: dict[str, bytes] = {}
        """Party that was ready once -> its leaf bits of a row of missing values."""
        self._numbers = itertools.count(1)
        columns = self.terms.blocks.columns_of(self.config.party).unlabelled()
        self.columns = tuple(dict.fromkeys([*columns.others, *columns.features]))
        """Names of the columns of a row."""

    async def met(self, peer: Peer) -> None:
        await self.say(peer, self._scorer.hello(peer.name))

    @property
    def ready(self) -> dict[str, bool]:
        """Whether each other party can answer."""
        return {name: name in self.peers and self.peers[name].is_ready for name in self.partners}

    async def take(self, peer: Peer, content: bytes) -> None:
        match content[0] if content else None:
            case scoring.LIST:
                work = partial(self._scorer.multiplied, content, peer.name)
                await self.say(peer, await self.beside(work))
            case scoring.READY if not peer.is_ready:
                (self._missing[peer.name],) = scoring.fields_of(content, scoring.READY, 1, peer.name)
                peer.is_ready = True
                self.log.info("party answers", party=peer.name)
            case scoring.REFUSAL:
                about, code, reason = scoring.fields_of(content, scoring.REFUSAL, 3, peer.name)
                error = Refused(
                    quoted(code.decode(errors="replace"), 60),
                    f"party {peer.name} refuses: {quoted(reason.decode(errors='replace'))}",
                )
                if about == number(0):
                    raise error
                peer.answered(about, error)
            case _:
                about, bits = scoring.fields_of(content, scoring.ANSWER, 2, peer.name)
                peer.answered(about, bits)

    async def score(
        self, table: pa.Table, client: str, reasons: bool
    ) -> tuple[Float64, Float64 | None, list[str]]:
        """Score rows with the label holder's columns and row ids. Returns the results of `Scorer.score`, and
        the parties that did not answer, whose columns count as missing. Raises Refused if a limit is
        exceeded, a party refuses, or it does not answer and partial scores are not allowed; ConfigError for
        rows that do not fit."""
        rows, points, of_row = await self.beside(partial(self._prepare, table, client))
        answers = await asyncio.gather(*(self._ask(party, points) for party in self.partners))
        told: dict[str, bytes] = {}
        without = []
        for party, answer in zip(self.partners, answers, strict=True):
            if isinstance(answer, Refused):
                if not (answer.code in AWAY and self.config.serve.partial and party in self._missing):
                    raise answer
                without.append(party)
            told[party] = self._missing[party] if isinstance(answer, Refused) else answer
        about = rows, of_row, told, without, reasons
        values, why = await self.beside(partial(self._scorer.score, *about))
        missing = {"without": ", ".join(without)} if without else {}
        self.log.info("rows scored", client=client, rows=rows.rows, **missing)
        return values, why, without

    def _prepare(self, table: pa.Table, client: str) -> tuple[Shard, bytes, Int64]:
        """Read the rows of a request, charge the client, and return the points of the rows' ids and the
        place of each row's id among them."""
        rows = to_shard(as_table(table), self.terms, self.config.party)
        points, of_row = self._scorer.question(rows.ids or ())
        most = self.config.serve.max_ids_per_client
        self.store.charge(f"client {client}", self.model.id, most, int(of_row.max()) + 1)
        return rows, points, of_row

    async def _ask(self, party: str, points: bytes) -> bytes | Refused:
        """Return a party's leaf bits; or an error if it is not connected, does not answer in time, or
        refuses."""
        peer = self.peers.get(party)
        if peer is None or not peer.is_ready:
            return Refused("score-party-away", f"party {party} is not connected, or not ready yet")
        about = number(next(self._numbers))
        peer.waiting[about] = future = asyncio.Future[bytes | Refused]()
        try:
            async with asyncio.timeout(self.config.serve.timeout):
                await self.say(peer, scoring.message(scoring.ASK, about, points))
                return await future
        except TimeoutError:
            limit = f"{self.config.serve.timeout:g} s"
            return Refused("score-party-late", f"party {party} did not answer within {limit}")
        finally:
            peer.waiting.pop(about, None)


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
    """Raise ConfigError unless a feature holder's policy allows predictions with this model."""
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
    if bundle is None:
        raise ConfigError(
            "serve-keys-missing", f"{config.file}: a scoring service needs keys; add `keys` to this file"
        )
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
    except DurabilityError as error:
        raise ConfigError("site-not-durable", str(error)) from None
    finally:
        store.close()
