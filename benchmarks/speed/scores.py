"""How fast does a scoring service answer?

    python benchmarks/speed/scores.py [--ids N] [--rate R] [--seconds S]

A bank and a phone company train a model of different columns (`plain`, 100 trees of depth 6) in processes of
this machine. Then `fedboost serve` runs at both, and the phone company's table has N ids (default 1,000,000).
First one client asks about single rows, one after the other. Then eight clients together ask about R single
rows per second (default 200) for S seconds. All requests are over HTTP on loopback.

The claims: one row takes at most 50 ms (median) and 150 ms (99th percentile), and R rows per second are
sustained without an error.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
from common import verdict
from pyarrow import csv, parquet

import fedboost as fb
from fedboost.runtime.config import to_toml
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.web.logins import add_token

TRAINED, CLIENTS, MOST, MOST_LATE = 5000, 8, 50.0, 150.0
COLUMNS = 10
POLICY: dict[str, object] = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["plain"],
    "parties": ["bank", "telco"],
    "min_parties": 2,
    "analysts": ["analyst"],
    "columns": "any",
    "max_predicted_rows": 1,
    "max_splits": 10_000,
}


def main() -> None:
    """Train, serve and measure."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--ids", type=int, default=1_000_000, help="of the phone company (default 1,000,000)")
    parser.add_argument("--rate", type=int, default=200, help="rows per second (default 200)")
    parser.add_argument("--seconds", type=int, default=30, help="at this rate (default 30)")
    parser.add_argument("--single", type=int, default=1000, help="rows asked about one by one (default 1000)")
    options = parser.parse_args()
    if options.ids < TRAINED:
        common.fail(f"--ids must be at least {TRAINED}")
    with tempfile.TemporaryDirectory(prefix="fedboost-") as name:
        report(options, measure(Path(name), options))


def measure(folder: Path, options: Any) -> dict[str, Any]:
    """Return the figures."""
    draw = np.random.default_rng(0)
    own = [f"b{i}" for i in range(COLUMNS)]
    theirs = [f"t{i}" for i in range(COLUMNS)]
    ids = np.arange(options.ids)
    telco = {"id": ids} | {name: draw.normal(size=options.ids).astype(np.float32) for name in theirs}
    bank = {"id": ids[:TRAINED]} | {name: draw.normal(size=TRAINED).astype(np.float32) for name in own}
    score = bank["b0"] + telco["t0"][:TRAINED] * telco["t1"][:TRAINED] + draw.normal(size=TRAINED)
    csv.write_csv(pa.table({**bank, "y": (score > 0).astype(int)}), folder / "bank.csv")
    table = pa.table(telco)
    parquet.write_table(table.slice(0, TRAINED), folder / "telco.parquet")
    columns = {"label": "y", "row_id": "id", "numeric": [*own, *theirs], "held": {"telco": theirs}}
    settings = {"protection": "plain", "model": "parties", "rounds": 100, "max_depth": 6, "max_bin": 64}
    terms = fb.Terms(
        columns=columns, parties=["bank", "telco"], label_holder="bank", min_child_weight=2.5, **settings
    )
    files = {"bank": folder / "bank.csv", "telco": folder / "telco.parquet"}
    with LocalCluster(folder, files, policy=POLICY, state=folder / "state") as cluster:
        _ = cluster.analyst.train(terms).model
        parquet.write_table(table, folder / "telco.parquet")
        token, _ = add_token(folder / "tokens.toml", "app", "client", 1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        bank_serves = {
            "listen": f"127.0.0.1:{port}",
            "tokens": str(folder / "tokens.toml"),
            "max_ids_per_client": 10**9,
        }
        begin = time.monotonic()
        processes = [
            serve(folder, "telco", {"max_ids": 10**9, "min_known_ids": 1}),
            serve(folder, "bank", bank_serves),
        ]
        try:
            client = Client(port, token, own, CLIENTS, options.ids)
            client.until_ready()
            making = time.monotonic() - begin
            one = client.ask(options.single)
            late, rate, errors = together(client, options.rate, options.seconds)
        finally:
            for process in processes:
                process.terminate()
                process.wait(30)
    return {"table": making, "one": one, "late": late, "rate": rate, "errors": errors}


def serve(folder: Path, name: str, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the service of a site."""
    lines = "".join(f"{key} = {to_toml(value)}\n" for key, value in settings.items())
    file = folder / f"{name}-serve.toml"
    file.write_text(f"{(folder / f'{name}.toml').read_text()}\n[serve]\n{lines}")
    command = [sys.executable, "-m", "fedboost", "serve", "--config", str(file)]
    with (folder / f"{name}-serve.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ})


class Client:
    """Asks about single rows over one connection."""

    def __init__(self, port: int, token: str, columns: list[str], seed: int, ids: int) -> None:
        self.port, self.token, self.columns, self.ids = port, token, columns, ids
        self.draw = np.random.default_rng(seed)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def another(self, number: int) -> "Client":
        """A client with its own connection and draws."""
        return Client(self.port, self.token, self.columns, number, self.ids)

    def until_ready(self) -> None:
        """Wait for the token table."""
        while True:
            try:
                self._connection.request("GET", "/api/v1/health", headers=self._headers)
                if json.loads(self._connection.getresponse().read())["ready"]:
                    return
            except OSError:
                self._connection.close()
            time.sleep(0.2)

    def once(self) -> float:
        """Ask about a row, and return the milliseconds. Raises RuntimeError if it is not answered."""
        values = self.draw.normal(size=len(self.columns)).tolist()
        row = dict(zip(self.columns, values, strict=True))
        body = json.dumps({"rows": [{"id": int(self.draw.integers(self.ids)), **row}]})
        begin = time.perf_counter()
        self._connection.request("POST", "/api/v1/scores", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(content.decode())
        return 1000 * (time.perf_counter() - begin)

    def ask(self, number: int) -> list[float]:
        """Ask about rows one by one."""
        return [self.once() for _ in range(number)]


def together(client: Client, rate: int, seconds: int) -> tuple[list[float], float, int]:
    """Ask about so many rows per second with several clients: milliseconds of each, counted from when it was
    due; rows per second that were answered; errors."""
    late: list[float] = []
    errors = [0]
    number = rate * seconds // CLIENTS
    start = time.monotonic() + 0.5

    def run(place: int) -> None:
        own = client.another(place)
        for at in range(number):
            due = start + (at * CLIENTS + place) / rate
            time.sleep(max(due - time.monotonic(), 0.0))
            try:
                own.once()
                late.append(1000 * (time.monotonic() - due))
            except (RuntimeError, OSError):
                errors[0] += 1

    threads = [threading.Thread(target=run, args=(place,)) for place in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return late, len(late) / (time.monotonic() - start), errors[0]


def report(options: Any, found: dict[str, Any]) -> None:
    """The table and the JSON file."""
    one, late = np.array(found["one"]), np.array(found["late"])
    median, high = float(np.median(one)), float(np.quantile(one, 0.99))
    is_held = median <= MOST and high <= MOST_LATE
    sustained = not found["errors"] and found["rate"] >= 0.99 * options.rate
    row = (
        *(f"{options.ids:,}", f"{found['table']:.0f}", f"{median:.1f}", f"{high:.1f}", verdict(is_held)),
        *(f"{found['rate']:.0f}", f"{np.median(late):.1f}", f"{np.quantile(late, 0.99):.1f}"),
        *(str(found["errors"]), verdict(sustained)),
    )
    shown = common.Table(
        "Single rows over HTTP",
        (
            *("ids", "to the first answer, s", "one row, ms", "99th percentile", "holds"),
            *("rows/s together", "together, ms", "99th percentile, together", "errors", "holds, together"),
        ),
        [row],
        ["All processes and clients share this machine. Times together are counted from when a row was due."],
    )
    figures = {
        "ids": options.ids,
        "table": found["table"],
        "median": median,
        "p99": high,
        "rate": found["rate"],
    }
    common.publish(options, [shown], figures)


if __name__ == "__main__":
    main()
