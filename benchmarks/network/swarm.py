"""Do 30 to 1,000 sites train together, and what does each tree cost the aggregator?

    python benchmarks/network/swarm.py --parties 30,100,300,1000

One `fedboost aggregator` process serves real sessions of parties over gRPC with mutual TLS, each with its own
certificate and connection. The parties are coroutines of two processes on the same machine, with 200 rows
each, so seconds are bounded by these processes; CPU seconds are the aggregator's alone. A party's memory is
in RAM. Signatures of greetings are checked once per process, not by every party.

CPU, MB (10^6 bytes of messages, as the aggregator counts them) and the median seconds are per tree, after the
second. The first tree includes all that precedes it. Memory and open files are the aggregator's.

--adders 0,8 trains without, then with 8 `fedboost adder` processes between parties and aggregator. --losses
drops 5 % of the connections for two seconds, --slow delays two parties by three seconds a turn, --kill
restarts an adder after kill -9. The tree that an event hits is the slowest of the next three.

The claim: every model equals that of the pooled rows (`to_xgboost`), and all parties signed it. With adders,
against the flat session of the same run: the aggregator exchanges at most 1.1 times the bytes divided by the
parties of an adder (masked; small trees have a fixed part), all processes together take at most 1.2 times its
CPU, and at 1,000 parties the aggregator takes at most 0.06 s. Exit status 1 if a claim does not hold.
"""

# One thread in every process, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import asyncio
import hashlib
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import grpc
from common import LABEL, verdict
from network import cpu_seconds
from parties import cut, resident, table_of

import fedboost as fb
from fedboost.holders.columns import holder_for
from fedboost.privacy.identity import issue, new_root, to_pem
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Ask, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.config import to_toml
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle, read_bundle, write_bundle
from fedboost.runtime.net.routes import Server
from fedboost.wire.messages import decode_to_party, encode_from_party

SIZES = {
    False: {"features": 10, "max_bin": 64, "max_depth": 4},
    True: {"features": 50, "max_bin": 256, "max_depth": 6},
}
"""Features, bins and depth, by --wide."""
ROWS = 200
"""Rows of a party."""
DRIVERS = 2
FIRST = 2
"""Trees before this are left out: kernels are loaded, and the parties meet."""
AFTER = 3
"""Trees among which the one is that an event hits."""
DIALLING = 40
"""Calls that a driver begins at the same time: an address may have few connections without a call."""
AWAY, LATE = 2.0, 3.0
"""Seconds that a dropped party is away, and that a slow one is late in each turn."""
REDIAL = 1.0
WAYS = "received", "sent"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Run:
    """One training. first: seconds and bytes to the first tree; seconds, cpu, computing, received, sent: of
    a tree, the CPU seconds of the aggregator and of all parties; memory: peak in bytes; model: its hash;
    adders: CPU seconds of a tree of each; events: name -> seconds and bytes of the tree that it hit."""

    parties: int
    protection: str
    connect: float
    first: tuple[float, int]
    seconds: float
    cpu: float
    computing: float
    received: float
    sent: float
    memory: int
    files: int
    model: str
    holds: bool
    adders: list[float]
    events: dict[str, tuple[float, float]]


def main() -> int:
    """Measure, or run as a process of parties."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--parties", type=numbers, default="30,100,300,1000", help="default: %(default)s")
    parser.add_argument("--protection", type=words, default="plain,masked", help="default: %(default)s")
    parser.add_argument("--adders", type=numbers, default="0", help="processes between (default: 0)")
    parser.add_argument("--rounds", type=int, default=6, help="trees before any event (default: 6)")
    parser.add_argument("--wide", action="store_true", help="50 features, 256 bins and depth 6")
    for event, what in (("losses", "drop 5 %% of the parties"), ("slow", "delay two parties")):
        parser.add_argument(f"--{event}", action="append_const", dest="events", const=event, help=what)
    parser.add_argument("--kill", action="store_true", help="kill and restart an adder, where there are some")
    parser.add_argument("--drive", type=json.loads, help="run as a process of parties with these settings")
    options = parser.parse_args()
    if options.drive:
        asyncio.run(drive(**options.drive))
        return 0
    if not {*options.protection} <= {"plain", "masked"}:
        common.fail("--protection must be plain, masked or plain,masked")
    if options.rounds <= FIRST or min(options.parties) < 3 or min(options.adders) < 0:
        common.fail(f"--rounds must be at least {FIRST + 1}, --parties at least 3, --adders at least 0")
    try:
        runs = [run for parties in options.parties for run in measure(parties, options)]
    except fb.FedboostError as error:
        common.fail(str(error))
    report(runs, options)
    return (
        0 if all(run.holds for run in runs) and all(pair.holds for pair in pairs(runs, options.wide)) else 1
    )


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


# ---- The parties: coroutines of a process ------------------------------------------------------------


@dataclass(eq=False)
class Party:
    """A party with its own connection. Its sessions outlive a lost connection, as at a real site."""

    site: Site
    address: tuple[str, str]
    """HOST:PORT and, where it is an adder's, the adder's name."""
    bundle: Bundle
    gate: asyncio.Semaphore
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    late: float = 0.0
    _away: float = 0.0
    _session: PartySession | None = None
    _name: str = ""
    _attending: "asyncio.Task[None] | None" = None

    async def run(self) -> None:
        """Serve the aggregator until cancelled."""
        while True:
            self._attending = asyncio.create_task(self._attend())
            await asyncio.wait({self._attending})
            lost = None if self._attending.cancelled() else self._attending.exception()
            if lost is not None and not self._may_return(lost):
                raise lost
            if self._session is not None:
                self._session.hang_up()
            await asyncio.sleep(self._away or REDIAL * random.uniform(0.5, 1.0))
            self._away = 0.0

    def _may_return(self, lost: BaseException) -> bool:
        """Whether to dial again: the connection was lost, and the party not refused from the start."""
        if isinstance(lost, grpc.aio.AioRpcError):
            return self.connected.is_set() or lost.code() == grpc.StatusCode.UNAVAILABLE
        return isinstance(lost, asyncio.InvalidStateError)  # closed during a write

    def drop(self) -> None:
        """Lose the connection and stay away for a while."""
        if self._attending is not None:
            self._away = AWAY
            self._attending.cancel()

    async def _attend(self) -> None:
        metadata = ((channel.PARTY_KEY, self.site.name.encode()), *channel.VERSIONS)
        address, adder = self.address
        async with channel.dial(Server(address, adder), self.bundle) as opened:
            async with self.gate:
                call = opened.stream_stream(channel.ATTEND)(metadata=metadata)
                if channel.VERSION_KEY in await call.initial_metadata():
                    self.connected.set()
            async for data in call:
                message = decode_to_party(data)
                if isinstance(message, Offer) and message.session != self._name:
                    self._name, self._session = message.session, PartySession(self.site)
                if self.late and isinstance(message, Ask):
                    await asyncio.sleep(self.late)
                if self._session is None:
                    continue
                for reply in self._session.handle(message):
                    await call.write(encode_from_party(reply))
                if self._session.ended is not None:
                    if self._session.ended:
                        print(f"{self.site.name}: {self._session.ended}", file=sys.stderr)
                    self._session = None


async def drive(folder: str, parties: int, wide: bool, part: int, addresses: list[list[str]]) -> None:
    """Run every DRIVERS-th party, and obey the lines on standard input, until it ends."""
    small = table_of(300, SIZES[wide]["features"])
    for protection in ("plain", "masked"):  # load kernels
        fb.simulate(terms_of(wide, 2).changed(protection=protection), cut(small, 3))
    tables = cut(table_of(ROWS * parties, SIZES[wide]["features"]), parties)
    gate, now, members = asyncio.Semaphore(DIALLING), datetime.now(UTC), {}
    for number, (name, table) in enumerate(tables.items()):
        if number % DRIVERS == part:
            bundle = read_bundle(Path(folder) / name, "party")
            # With the same roots and time, the next party in this process finds greetings checked.
            to = addresses[number % len(addresses)][0], addresses[number % len(addresses)][1]
            trusts = Credentials(bundle.signer, bundle.roots, bundle.denied, lambda: now)
            read = partial(to_shard, as_table(table), site=name)
            site = Site(name, holder_for(read, name), os.urandom, trusts)
            members[number] = Party(site, to, bundle, gate)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    await lines.readline()
    parties_run = (member.run() for member in members.values())
    await asyncio.gather(obey(lines, members), announce([*members.values()]), *parties_run)


async def announce(members: list[Party]) -> None:
    """Print a line when all parties are connected."""
    async with asyncio.timeout(START_SECONDS):
        for member in members:
            await member.connected.wait()
    print("connected", flush=True)


async def obey(lines: asyncio.StreamReader, members: Mapping[int, Party]) -> None:
    """Do what each line says, and end the process after the last one."""
    while line := (await lines.readline()).decode().strip():
        for number, member in members.items():
            if line == "losses" and number % 40 < 2:
                member.drop()
            if line in ("slow", "not slow") and number < 2:
                member.late = LATE if line == "slow" else 0.0
    os._exit(0)  # without closing a thousand connections


# ---- The consortium: an aggregator, adders, and the processes of the parties --------------------------


@dataclass
class Swarm:
    """A running consortium. restart: kills an adder and starts it again."""

    analyst: Any
    aggregator: int
    adders: "list[subprocess.Popen[str]]"
    drivers: "list[subprocess.Popen[str]]"
    connect: float
    restart: Callable[[], None]
    metrics: str

    def moved(self, traffic: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Bytes that the aggregator received and sent so far: frames of adders, where there are some, and
        otherwise messages of the session."""
        if not self.adders:
            sent, received = (sum(column) for column in zip(*traffic.values(), strict=True))
            return sent, received
        with urlopen(f"http://{self.metrics}/metrics") as page:
            text = page.read().decode()
        ways = (re.findall(rf'_{way}_bytes_total{{party="adder [^"]*"}} (\S+)', text) for way in WAYS)
        received, sent = (int(sum(map(float, found))) for found in ways)
        return received, sent

    def happen(self, event: str) -> None:
        """Cause an event, or end it."""
        if event == "kill":
            self.restart()
            return
        for driver in self.drivers:
            assert driver.stdin is not None
            driver.stdin.write(f"{event}\n")
            driver.stdin.flush()


def write_keys(folder: Path, parties: list[str], adders: list[str]) -> None:
    """Write the key bundles of a consortium."""
    now = datetime.now(UTC)
    root_key, root = new_root("swarm", now, 2)
    roles = {"aggregator": "aggregator", "analyst": "analyst"}
    roles |= dict.fromkeys(adders, "adder") | dict.fromkeys(parties, "party")
    for name, role in roles.items():
        write_bundle(folder / name, *issue(root_key, root, name, role, now, 1), to_pem(root))


@contextmanager
def swarm(names: list[str], adders: int, wide: bool) -> Iterator[Swarm]:
    """Run a consortium whose parties are connected."""
    with TemporaryDirectory(prefix="fedboost-") as place, ExitStack() as running:
        folder = Path(place)
        relays = [f"adder-{number + 1}" for number in range(adders)]
        write_keys(folder, names, relays)

        def start(*command: str, **pipes: Any) -> "subprocess.Popen[str]":
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            process = subprocess.Popen([sys.executable, *command], text=True, env=env, **pipes)
            running.callback(process.wait)
            running.callback(process.kill)
            return process

        def serve(role: str, name: str, **config: str) -> "subprocess.Popen[str]":
            file, log = folder / f"{name}.toml", running.enter_context((folder / f"{name}.log").open("a"))
            settings = {"keys": str(folder / name), **config}
            file.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in settings.items()))
            command = ("-m", "fedboost", role, "--config", str(file), "--json")
            process = start(*command, stdout=subprocess.PIPE, stderr=log)
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                common.fail(f"{name} does not start: {(folder / f'{name}.log').read_text().strip()[-300:]}")
            process.address = json.loads(line)["address"]  # type: ignore[attr-defined]
            return process

        settings = {"listen": "127.0.0.1:0", "state": str(folder / "state"), "metrics": free()}
        aggregator: Any = serve("aggregator", "aggregator", **settings)
        upstream = aggregator.address
        between: list[Any] = [serve("adder", name, listen=free(), upstream=upstream) for name in relays]

        def restart() -> None:
            between[0].kill()
            between[0].wait()
            time.sleep(1.0)
            between[0] = serve("adder", relays[0], listen=between[0].address, upstream=upstream)

        shared = {"folder": place, "parties": len(names), "wide": wide}
        called = [(adder.address, name) for adder, name in zip(between, relays, strict=True)]
        shared["addresses"] = called or [(upstream, "")]
        drivers = [
            start(__file__, "--drive", json.dumps({**shared, "part": part}), **PIPES)
            for part in range(DRIVERS)
        ]
        expect(drivers, "ready")
        analyst = fb.connect(upstream, folder / "analyst")
        found = Swarm(analyst, aggregator.pid, between, drivers, 0.0, restart, settings["metrics"])
        began = time.monotonic()
        found.happen("go")
        expect(drivers, "connected")
        found.connect = time.monotonic() - began
        yield found


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def expect(drivers: "list[subprocess.Popen[str]]", word: str) -> None:
    for driver in drivers:
        assert driver.stdout is not None
        if driver.stdout.readline().strip() != word:
            common.fail(f"a process of parties ended before it was {word}")


def free() -> str:
    """An address that no one listens at, so that an adder has it again after a restart."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# ---- Measuring ---------------------------------------------------------------------------------------


def terms_of(wide: bool, rounds: int) -> fb.Terms:
    size = dict(SIZES[wide])
    numeric = [f"f{number}" for number in range(size.pop("features"))]
    columns = {"label": LABEL, "numeric": numeric}
    return fb.Terms.read({"columns": columns, "rounds": rounds, "protection": "plain", **size})


def measure(parties: int, options: Any) -> Iterator[Run]:
    """Train with this many parties under each protection, without and with adders."""
    table = table_of(ROWS * parties, SIZES[options.wide]["features"])
    for adders in options.adders:
        events = [*(options.events or ()), *(["kill"] if options.kill and adders else [])]
        # Also without events or adders there are as many trees, so that models can be compared.
        rounds = options.rounds + AFTER * (len(options.events or ()) + options.kill)
        terms = terms_of(options.wide, rounds)
        pooled = digest(fb.simulate(terms, [table]).model)
        names = [*cut(table, parties)]
        with swarm(names, adders, options.wide) as running:
            for protection in options.protection:
                agreed = terms.changed(parties=names, protection=protection)
                yield train(running, agreed, options.rounds, events, pooled)


def digest(model: Any) -> str:
    return hashlib.sha256(model.booster.to_xgboost().encode()).hexdigest()


def train(running: Swarm, terms: fb.Terms, quiet: int, events: list[str], pooled: str) -> Run:
    """Train once. quiet: trees before the first event."""
    aggregator, files = Path(f"/proc/{running.aggregator}"), 0
    (aggregator / "clear_refs").write_text("5")  # resets the peak
    training = running.analyst.train(terms)
    began, rows, marks, due = time.monotonic(), list[Mapping[str, Any]](), [], list(events)
    first = 0.0
    for row in training:
        rows.append(row)
        first = first or time.monotonic() - began
        files = max(files, len(os.listdir(aggregator / "fd")))
        if len(rows) in (FIRST, quiet):
            sent, received = running.moved(training.traffic)
            computing = sum(cpu_seconds(driver.pid) for driver in running.drivers)
            cpu = [cpu_seconds(each) for each in (running.aggregator, *(a.pid for a in running.adders))]
            marks.append((sent, received, computing, *cpu))
        past = len(rows) - quiet
        if past % AFTER == AFTER - 1:
            running.happen("not slow")  # a whole tree was
        if past >= 0 and past % AFTER == 0 and due:
            time.sleep(min(0.5, rows[-1]["seconds"] / 2))  # until the next tree has begun
            running.happen(due.pop(0))
    trees = quiet - FIRST
    changes = ((after - before) / trees for before, after in zip(*marks, strict=True))
    received, sent, computing, cpu, *adders = changes
    model = training.model
    run = Run(
        parties=len(terms.parties),
        protection=terms.protection.name,
        connect=running.connect,
        first=(first, rows[0]["bytes"]),
        seconds=statistics.median(row["seconds"] for row in rows[FIRST:quiet]),
        cpu=cpu,
        computing=computing,
        received=received,
        sent=sent,
        memory=resident(running.aggregator, "VmHWM"),
        files=files,
        model=digest(model),
        holds=digest(model) == pooled and set(model.attestations) == set(terms.parties),
        adders=adders,
        events={name: hit(rows[quiet + AFTER * place :]) for place, name in enumerate(events)},
    )
    print(f"{label(run)}: {run.seconds:.2f} s a tree, {run.cpu:.3f} s of CPU", file=sys.stderr)
    return run


def hit(rows: list[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds and bytes of the slowest of the first AFTER trees."""
    slowest = max(rows[:AFTER], key=lambda row: row["seconds"])
    return slowest["seconds"], slowest["bytes"]


# ---- With adders, against the flat session --------------------------------------------------------------

MOST_BYTES, MOST_CPU, MOST_ROOT = 1.1, 1.2, 0.06
"""Claims: bytes times the parties of an adder, and CPU of all processes but the parties', each as a share of
the flat session's; CPU seconds of the aggregator at MANY parties, for small trees."""
MANY = 1000


@dataclass(frozen=True)
class Pair:
    """A run with adders beside the flat run of the same parties and protection."""

    flat: Run
    tree: Run
    wide: bool

    @property
    def size(self) -> float:
        """Bytes of the aggregator times the parties of an adder, as a share of the flat session's bytes."""
        group = self.tree.parties / len(self.tree.adders)
        return (self.tree.received + self.tree.sent) * group / (self.flat.received + self.flat.sent)

    @property
    def whole(self) -> float:
        """CPU seconds of aggregator and adders, as a share of the flat aggregator's."""
        return (self.tree.cpu + sum(self.tree.adders)) / self.flat.cpu

    @property
    def holds(self) -> bool:
        small = self.wide or self.tree.parties < MANY or self.tree.cpu <= MOST_ROOT
        fits = self.tree.protection != "masked" or self.tree.parties < MANY or self.size <= MOST_BYTES
        return small and fits and (self.tree.parties < MANY or self.whole <= MOST_CPU)


def pairs(runs: list[Run], wide: bool = False) -> list[Pair]:
    flat = {(run.parties, run.protection): run for run in runs if not run.adders}
    with_adders = [run for run in runs if run.adders and (run.parties, run.protection) in flat]
    return [Pair(flat[run.parties, run.protection], run, wide) for run in with_adders]


# ---- Tables ------------------------------------------------------------------------------------------


def label(run: Run) -> str:
    adders = f", {len(run.adders)} adders" if run.adders else ""
    return f"{run.parties:,} parties, {run.protection}{adders}"


def report(runs: list[Run], options: Any) -> None:
    """Print the tables and write the JSON file."""
    size = SIZES[options.wide]
    title = (
        f"{ROWS} x {size['features']} a party, {size['max_bin']} bins, depth {size['max_depth']}, "
        f"{os.cpu_count()} cores"
    )
    headings = ["sites", "connect s", "first tree s", "tree s", "CPU s a tree", "of all parties"]
    headings += ["MB a tree in", "MB out", "MB to the first tree", "RSS MB", "files", "same model"]
    headings += ["CPU s an adder"] if any(run.adders for run in runs) else []
    rows = []
    for run in runs:
        seconds = f"{run.connect:.1f}", f"{run.first[0]:.1f}", f"{run.seconds:.2f}"
        cpu = f"{run.cpu:.3f}", f"{run.computing:.2f}"
        sizes = (f"{value / 1e6:.1f}" for value in (run.received, run.sent, run.first[1]))
        rest = f"{run.memory / 1e6:.0f}", f"{run.files:,}", verdict(run.holds)
        adders = [common.spread(run.adders, 3)] if run.adders else []
        rows.append([label(run), *seconds, *cpu, *sizes, *rest, *adders])
    tables = [common.Table(title, headings, rows)]
    lines = []
    for run in runs:
        for name, (slowest, size_of) in run.events.items():
            sizes = (f"{value / 1e6:.1f}" for value in (size_of, run.received + run.sent))
            lines.append([f"{label(run)}: {name}", f"{slowest:.1f}", f"{run.seconds:.2f}", *sizes])
    if compared := pairs(runs, options.wide):
        headings = ["with adders", "CPU s of the aggregator", "flat / that", "MB", "flat / that"]
        headings += ["bytes x parties an adder / flat", "CPU of all / flat", "holds"]
        rows = []
        for pair in compared:
            flat, tree = pair.flat, pair.tree
            moved, before = ((run.received + run.sent) / 1e6 for run in (tree, flat))
            cpu = f"{tree.cpu:.3f}", f"{flat.cpu / tree.cpu:.0f}"
            rest = f"{pair.size:.2f}", f"{pair.whole:.2f}", verdict(pair.holds)
            rows.append([label(tree), *cpu, f"{moved:.2f}", f"{before / moved:.0f}", *rest])
        tables.append(common.Table("With adders, against the flat session", headings, rows))
    if lines:
        headings = ["event", "s of the tree", "s else", "MB of the tree", "MB else"]
        tables.append(common.Table("The slowest tree after an event", headings, lines))
    common.publish(options, tables, {"runs": [asdict(run) for run in runs], "wide": options.wide})


if __name__ == "__main__":
    sys.exit(main())
