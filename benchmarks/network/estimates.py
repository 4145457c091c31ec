"""Is `fedboost estimate` close to the cost of a training?

    python benchmarks/network/estimates.py

Trains over gRPC on loopback with three parties and an aggregator as processes with keys, on generated dense
float32 rows: 50 rounds, 256 bins, `plain` and `masked`. Compares with `fedboost estimate --data` for the
same terms and rows. MB are 10^6 bytes, the mean of the parties, including all messages before the first
round. Seconds per round are the median of the rounds after the second. Seconds in all are those from the
analyst's request to the model.

The claim: bytes and seconds, per round and in all, are within 1.5 times of the estimate, in either
direction.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import pyarrow as pa
from common import LABEL, generate, verdict
from pyarrow import parquet

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import terms_to_toml

ROWS, FEATURES, ROUNDS = 30_000, 14, 50
DEPTHS, PROTECTIONS = (3, 8), ("plain", "masked")
AT_MOST = 1.5
"""Claimed limit of the ratio between a figure and its estimate, in either direction."""


@dataclass(frozen=True)
class Figures:
    """Megabytes that a party sends in a round; seconds of a round and of the training."""

    megabytes: float
    a_round: float
    seconds: float

    def apart(self, other: "Figures") -> float:
        """Largest ratio between a figure and its estimate."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return max(max(one / another, another / one) for one, another in pairs)


def measured(terms: fb.Terms, files: dict[str, Path], folder: Path) -> Figures:
    """The figures of a training over gRPC."""
    with LocalCluster(folder, dict(files), approved=terms) as consortium:
        begin = time.monotonic()
        training = consortium.analyst.train(terms)
        seconds = [row["seconds"] for row in training]
        _ = training.model
        total = time.monotonic() - begin
        sent = statistics.mean(sent for sent, _ in training.traffic.values())
    return Figures(sent / terms.trees.rounds / 1e6, statistics.median(seconds[2:]), total)


def estimated(terms: Path, table: Path) -> dict[str, Figures]:
    """The figures of the estimate, by protection."""
    command = [sys.executable, "-m", "fedboost", "estimate", str(terms), "--data", str(table), "--json"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {
        line["protection"]: Figures(line["megabytes"], line["seconds_a_round"], line["seconds"])
        for line in map(json.loads, lines)
    }


def main() -> None:
    options = common.arguments(__doc__, needs_data=False).parse_args()
    columns, label = generate(ROWS, FEATURES)
    table = pa.table({**columns, LABEL: label})
    lines, values, holds = [], {}, True
    with TemporaryDirectory() as name:
        folder = Path(name)
        parquet.write_table(table, folder / "all.parquet")
        files = {}
        for party, part in zip(common.PARTIES, common.equal_parts(table, 3), strict=True):
            files[party] = folder / f"{party}.parquet"
            parquet.write_table(part, files[party])
        for depth in DEPTHS:
            for protection in PROTECTIONS:
                terms = fb.Terms(
                    columns={"label": LABEL, "numeric": list(columns)},
                    **{
                        "parties": list(files),
                        "rounds": ROUNDS,
                        "max_depth": depth,
                        "protection": protection,
                    },
                )
                (folder / "terms.toml").write_text(terms_to_toml(terms))
                found = measured(terms, files, folder)
                guess = estimated(folder / "terms.toml", folder / "all.parquet")[protection]
                holds &= found.apart(guess) <= AT_MOST
                pairs = zip(asdict(found).values(), asdict(guess).values(), (3, 3, 1), strict=True)
                cells = [f"{one:.{digits}f} / {other:.{digits}f}" for one, other, digits in pairs]
                lines.append((f"{depth}, {protection}", *cells, f"{found.apart(guess):.2f}"))
                values[f"{depth} {protection}"] = {"measured": asdict(found), "estimated": asdict(guess)}
                print(*lines[-1], sep="   ", flush=True)
    headings = ("depth, protection", "MB a round", "s a round", "s in all", "apart at most")
    title = f"{ROWS:,} x {FEATURES}, {ROUNDS} rounds, three parties: measured / estimated"
    notes = (f"Each within {AT_MOST} times of its estimate: {verdict(holds)}.",)
    common.publish(options, [common.Table(title, headings, tuple(lines), notes)], values)


if __name__ == "__main__":
    main()
