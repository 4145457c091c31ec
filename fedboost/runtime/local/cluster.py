"""Runs a consortium on a single machine, for the demo, examples and tests. Each party and the aggregator run
in a separate process and communicate over loopback.

The operating system chooses the port. All processes are stopped at the end, and their logs are kept in the
folder. Keys are deleted at the end. The parties' memories (records of their sessions) are also deleted unless
a `state` folder is given. If a process does not start, SessionFailed is raised with the last line of its log.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO

from fedboost.errors import SessionFailed
from fedboost.privacy.identity import issue, new_root, to_pem
from fedboost.runtime.analyst import Connection, connect
from fedboost.runtime.config import to_toml
from fedboost.runtime.files import party_stems
from fedboost.runtime.net.keys import write_bundle
from fedboost.runtime.site.approval import approve, review
from fedboost.runtime.site.backup import init_memory
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.telemetry import TABLE_AVAILABLE
from fedboost.system import LOCAL, NEW_GROUP, without_interrupts
from fedboost.terms.terms import Terms

START_SECONDS = 60.0
SECONDS_A_PARTY = 4.0
"""Additional seconds to wait for each party to connect, because all processes share the cores when they
start."""
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02
AGGREGATOR = "aggregator"
"""Stem of the names of the aggregator's files."""
ANALYST = "analyst"


class LocalCluster:
    """Context manager that runs an aggregator and parties in separate processes. While it is active, all
    parties are connected, and terms can be submitted through the property `analyst`.

    Attributes: `aggregator` is the aggregator's process, `parties` maps each party's name to its process,
    `keys` is the folder of the key bundles, and `state` is the folder of the parties' memories and audit
    logs.

    Args:
        folder: folder for config files and logs.
        tables: party name -> table file, or None for a key holder that has no rows.
        programs: custom programs that the aggregator offers.
        policy: policy of all parties. If None, parties refuse terms that have not been approved (`approve`).
        approved: terms that every party approves before it starts.
        state: folder in which memories and audit logs are kept after the end (default: they are deleted).
    """

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, Path | None],
        programs: Iterable[str] = (),
        policy: Mapping[str, object] | None = None,
        approved: Terms | None = None,
        state: Path | None = None,
    ) -> None:
        self._folder = folder
        self._tables = dict(tables)
        self._programs = list(programs)
        self._policy = dict(policy or {})
        self._approved = approved
        self._state = state
        self._stems = party_stems(self._tables)
        self._spawned: set[str] = set()
        self._open = ExitStack()
        self.parties: dict[str, subprocess.Popen[str]] = {}
        self.aggregator: subprocess.Popen[str]
        self.address = ""

    def __enter__(self) -> "LocalCluster":
        self._open.__enter__()
        try:
            self.keys = Path(self._open.enter_context(TemporaryDirectory(prefix="fedboost-")))
            self.state = self.keys / "parties" if self._state is None else self._state.resolve()
            write_consortium(self.keys, self._stems, days=1)
            self.start_aggregator()
            for name in self._tables:
                self.start_party(name)
            self._wait_for_parties()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def analyst(self) -> Connection:
        return connect(self.address, self.keys / ANALYST)

    def approve(self, terms: Terms) -> None:
        """Approve terms from the cluster's analyst at every party, as `fedboost approve --yes` does."""
        for stem in self._stems.values():
            _approve(read_party(self._folder / f"{stem}.toml", holds_rows=None), terms)

    def log(self, party: str) -> str:
        return self._log_file(self._stems[party]).read_text(encoding="utf-8")

    def _log_file(self, stem: str) -> Path:
        return self._folder / f"{stem}.log"

    def start_aggregator(self) -> None:
        """Start the aggregator. A restarted aggregator has the same address and state as before."""
        values = {
            "listen": self.address or "127.0.0.1:0",
            "keys": str(self.keys / AGGREGATOR),
            "state": str(self.keys / "state"),
            "programs": self._programs,
        }
        process = self.aggregator = self._spawn(AGGREGATOR, values, "--json")
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait(START_SECONDS)
            raise SessionFailed(
                "cluster-start-failed", f"the aggregator did not start: {self._last_words(AGGREGATOR)}"
            )
        self.address = json.loads(line)["address"]

    def start_party(self, name: str) -> None:
        """Start a party without waiting for it to connect. Connecting takes about a second."""
        stem = self._stems[name]
        table = self._tables[name]
        values: dict[str, object] = {
            "party": name,
            "aggregator": self.address,
            **({} if table is None else {"data": str(table.resolve())}),
            "keys": str(self.keys / stem),
            "state": str(self.state),
            **({"policy": self._policy} if self._policy else {}),
        }
        self.parties[name] = self._spawn(stem, values)

    def stop_party(self, name: str) -> None:
        """Stop a party, and wait until the aggregator no longer lists it as connected. Raises SessionFailed
        if that takes too long."""
        _end(self.parties[name])
        end = time.monotonic() + STOP_SECONDS
        while any(member.name == name and member.since for member in self.analyst.status().members):
            if time.monotonic() > end:
                raise SessionFailed(
                    "cluster-stop-failed", f"party {name} was stopped, but the aggregator still lists it"
                )
            time.sleep(POLL_SECONDS)

    def _wait_for_parties(self) -> None:
        end = time.monotonic() + START_SECONDS + SECONDS_A_PARTY * len(self.parties)
        for name, process in self.parties.items():
            while TABLE_AVAILABLE not in self.log(name):
                if process.poll() is not None or time.monotonic() > end:
                    raise SessionFailed(
                        "cluster-start-failed",
                        f"party {name} did not start: {self._last_words(self._stems[name])}",
                    )
                time.sleep(POLL_SECONDS)

    def _spawn(self, stem: str, config: Mapping[str, object], *options: str) -> "subprocess.Popen[str]":
        role = AGGREGATOR if stem == AGGREGATOR else "party" if "data" in config else "keyholder"
        file = self._folder / f"{stem}.toml"
        file.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in config.items()), "utf-8")
        if role != AGGREGATOR and stem not in self._spawned:
            init_memory(read_party(file, holds_rows=None))
            if self._approved is not None:
                _approve(read_party(file, holds_rows=None), self._approved)
        log = self._open.enter_context(self._log_file(stem).open("a" if stem in self._spawned else "w"))
        self._spawned.add(stem)
        with without_interrupts():  # Ctrl-C is for this process only
            process = self._start(role, file, log, *options)
        self._open.callback(_end, process)
        return process

    def _start(self, role: str, file: Path, log: IO[str], *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "fedboost", role, "--config", str(file), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if role == AGGREGATOR else log,
            stderr=log,
            encoding="utf-8",
            creationflags=NEW_GROUP,
            # The process finds the same modules as this one, e.g. a custom program next to the script.
            env={**os.environ, LOCAL: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def _last_words(self, stem: str) -> str:
        lines = self._log_file(stem).read_text(encoding="utf-8").strip().splitlines()
        return lines[-1] if lines else "its log is empty"


def write_consortium(folder: Path, parties: Mapping[str, str], days: int, adders: Iterable[str] = ()) -> None:
    """Create a consortium, and write key bundles for its members. The root key is not kept.

    Args:
        folder: where the bundles are written. The folders of the aggregator's and the analyst's bundles are
            named `aggregator` and `analyst`.
        parties: party name -> name of the bundle's folder.
        days: number of days for which the certificates are valid.
        adders: names of adders, which are also the names of their folders.
    """
    now = datetime.now(UTC)
    root_key, root = new_root("loopback", now, days + 1)
    holders = [(AGGREGATOR, AGGREGATOR, AGGREGATOR), (ANALYST, ANALYST, ANALYST)]
    holders += [(stem, name, "party") for name, stem in parties.items()]
    holders += [(name, name, "adder") for name in adders]
    for stem, name, role in holders:
        key, certificate = issue(root_key, root, name, role, now, days)
        write_bundle(folder / stem, key, certificate, to_pem(root))


def _approve(config: PartyConfig, terms: Terms) -> None:
    approve(config, terms, review(config, terms, (ANALYST,)), datetime.now(UTC))


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
