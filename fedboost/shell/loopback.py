"""A consortium on one machine: an aggregator and its parties as processes of their own, on loopback.

For the demo, examples and tests. Promises: the system chooses the port; every process started here is ended
here, by its own id; what they log goes to files in the folder.
Refuses: processes that do not come up (SessionFailed, with the last line they wrote).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from fedboost.errors import SessionFailed
from fedboost.shell.analyst import Connection, connect

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class Loopback:
    """A context manager: inside it the processes run and `analyst` is connected.

    folder: where config files and logs are written; tables: party name to its table file; programs: custom
    programs the aggregator offers.
    """

    def __init__(self, folder: Path, tables: Mapping[str, Path], programs: Iterable[str] = ()) -> None:
        self._folder = folder
        self._tables = dict(tables)
        self._programs = list(programs)
        self._open = ExitStack()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.address = ""

    def __enter__(self) -> "Loopback":
        self._open.__enter__()
        try:
            self._start_aggregator()
            for name in self._tables:
                self.start_party(name)
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
        """An analyst's connection to the aggregator."""
        return connect(self.address)

    def log(self, name: str) -> str:
        """What a process has logged so far."""
        return self._log_file(name).read_text()

    def _log_file(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start_aggregator(self) -> None:
        config = self._folder / "aggregator.toml"
        config.write_text(f'listen = "127.0.0.1:0"\nprograms = {json.dumps(self._programs)}\n')
        process = self._spawn("aggregator", "aggregator", "--config", str(config), "--json")
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait(START_SECONDS)
            raise SessionFailed(f"the aggregator did not start: {self._last_words('aggregator')}")
        self.address = json.loads(line)["address"]

    def start_party(self, name: str) -> None:
        """Start a party's process."""
        config = self._folder / f"{name}.toml"
        values = {"party": name, "aggregator": self.address, "data": str(self._tables[name].resolve())}
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        self._spawn(name, "party", "--config", str(config))

    def _spawn(self, name: str, *arguments: str) -> "subprocess.Popen[str]":
        log = self._open.enter_context(self._log_file(name).open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", "fedboost", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if name == "aggregator" else log,
            stderr=log,
            text=True,
            # The processes find the modules this one finds: a custom program beside the script that runs.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._open.callback(_end, process)
        self.processes[name] = process
        return process

    def _last_words(self, name: str) -> str:
        lines = self.log(name).strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
