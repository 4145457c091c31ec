"""What does a whole training cost under each protection, over the network?

    python benchmarks/network/protections.py --data FOLDER

Trains all rows of adult at three parties with equal shares: 20 rounds, depth 4, 32 bins. The aggregator and
the parties are processes with one thread on one machine, connected by gRPC over loopback with mutual TLS,
also for `plain`. Paillier keys have 2048 bits, and the first party holds the key. Seconds are wall time
from submitting the terms to the model, including key generation. The models are compared byte for byte.
There is no claim.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
from anything import ANYTHING
from pyarrow import parquet

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster

PROTECTIONS = ("plain", "masked", "paillier")
SETTINGS = {"rounds": 20, "max_depth": 4, "max_bin": 32}


def main() -> None:
    """Train once under each protection, after a first training that is not counted."""
    parser = common.arguments(__doc__)
    parser.add_argument("--protections", nargs="+", choices=PROTECTIONS, default=list(PROTECTIONS))
    options = parser.parse_args()
    table = common.load(options.data, common.ADULT)
    terms = fb.Terms.draft(table, common.ADULT.label, parties=common.PARTIES, protection="plain", **SETTINGS)
    rows, models, values = [], [], {}
    with TemporaryDirectory(prefix="fedboost-") as name:
        files = {party: Path(name) / f"{party}.parquet" for party in common.PARTIES}
        shares = common.equal_parts(table, len(files))
        for path, part in zip(files.values(), shares, strict=True):
            parquet.write_table(part, path)
        with LocalCluster(Path(name), files, policy=ANYTHING) as one:
            for _ in one.analyst.train(terms.changed(rounds=1)):
                pass
            for protection in options.protections:
                print(f"{protection} ...", file=sys.stderr)
                keys = {"keyholder": common.PARTIES[0], "key_bits": 2048}
                own = keys if protection == "paillier" else {}
                begin = time.perf_counter()
                training = one.analyst.train(terms.changed(protection=protection, **own))
                models.append(training.model.booster.to_xgboost())
                seconds = time.perf_counter() - begin
                most = max(sum(of_party) for of_party in training.traffic.values())
                rows.append([protection, f"{seconds:.1f}", f"{most / 1e6:.1f}"])
                values[protection] = {"seconds": seconds, "traffic": training.traffic}
    if any(model != models[0] for model in models):
        common.fail("the models of two protections differ")
    shown = common.Table(
        f"adult, 3 parties over gRPC, {SETTINGS['rounds']} rounds, depth {SETTINGS['max_depth']}, "
        f"{SETTINGS['max_bin']} bins",
        ("protection", "seconds", "MB of the party that sends and receives most"),
        rows,
        ["The models are the same, byte for byte."],
    )
    common.publish(options, [shown], values)


if __name__ == "__main__":
    main()
