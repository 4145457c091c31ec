"""What does it cost two parties to find the rows that they share?

    python benchmarks/speed/alignment.py [--peer-python PYTHON]

Measures CPU seconds of both parties together on one core, from the bytes of ids to the row indices of
common ids. Ids become points of Curve25519, each party multiplies its own list and then the other's by its
secret, and tokens are computed and intersected. Half of the ids are common. The second multiplication
includes the check of the received list.

openmined-psi (ECDH on P-256, one of two parties gets the result) runs in the interpreter of --peer-python,
since it needs a different protobuf version. The server's list is raw and compressed (gcs). Its messages are
neither serialized nor parsed.

The claims: fedboost takes at most the time of the faster variant in the same run. 1,000,000 ids per party
take less than ten minutes.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import secrets
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
from common import verdict

from fedboost.privacy import points

PEER = Path(__file__).with_name("alignment_peer.py")
STRUCTURES = ("raw", "gcs")
STEPS = ("points of ids", "first multiplication", "second multiplication", "tokens", "intersection")
MOST = 600.0
"""Claimed limit of the larger lists in CPU seconds."""
WITHOUT = 2_000
"""Number of ids in the measurement without gmpy2."""

Seconds = dict[str, float]


def main() -> None:
    """Measure both sides in turn, then the larger lists."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--rows", type=int, default=100_000, help="ids of each party (default 100000)")
    parser.add_argument("--larger", type=int, default=1_000_000, help="and once so many (default 1000000)")
    parser.add_argument("--repeats", type=int, default=3, help="medians are taken over these (default 3)")
    parser.add_argument(
        "--peer-python",
        metavar="PYTHON",
        help="an interpreter with openmined-psi (default: none is measured)",
    )
    options = parser.parse_args()
    fedboost: list[Seconds] = []
    peers: dict[str, list[Seconds]] = {name: [] for name in STRUCTURES if options.peer_python}
    release = ""
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1} ...", file=sys.stderr)
        fedboost.append(ours(options.rows))
        for name, found in peers.items():
            seconds, release = theirs(options.peer_python, options.rows, name)
            found.append(seconds)
    print(f"{options.larger:,} ids ...", file=sys.stderr)
    larger = ours(options.larger)
    without = 1e6 * without_gmpy2() / WITHOUT
    tables = [
        steps_of(fedboost, larger, options),
        against(fedboost, larger, peers, release, without, options),
    ]
    values = {"fedboost": fedboost, "larger": larger, "openmined": peers, "without gmpy2, us an id": without}
    common.publish(options, tables, values)


def ours(rows: int) -> Seconds:
    """Time one alignment of two parties."""
    found: Seconds = {}
    context, keys = secrets.token_bytes(32), [secrets.token_bytes(32) for _ in range(2)]
    ids = [ids_between(0, rows), ids_between(rows // 2, rows + rows // 2)]
    lists = [timed(found, STEPS[0], points.points_of, own, context) for own in ids]
    pairs = zip(lists, keys, strict=True)
    lists = [timed(found, STEPS[1], points.multiply, own, key) for own, key in pairs]
    pairs = zip(lists, keys[::-1], strict=True)
    lists = [timed(found, STEPS[2], checked_product, own, rows, key) for own, key in pairs]
    tokens = [timed(found, STEPS[3], points.tokens_of, own) for own in lists]
    places = timed(found, STEPS[4], points.intersect, tokens)
    shared = [[own[place] for place in its] for own, its in zip(ids, places, strict=True)]
    if shared[0] != shared[1] or {*shared[0]} != {*ids[0]} & {*ids[1]}:
        common.fail("fedboost finds other ids than the common ones")
    return found


def ids_between(first: int, end: int) -> list[bytes]:
    """Generate the ids; the peer's script generates the same."""
    return [f"id-{n}".encode() for n in range(first, end)]


def checked_product(own: bytes, rows: int, key: bytes) -> bytes:
    """Check and multiply another party's list."""
    points.check_points(own, rows, "north")
    return points.multiply(own, key)


def timed(found: Seconds, what: str, work: Callable[..., Any], *given: Any) -> Any:
    """Run the work and add its CPU seconds to `found`."""
    start = time.process_time()
    result = work(*given)
    found[what] = found.get(what, 0.0) + time.process_time() - start
    return result


def theirs(python: str, rows: int, structure: str) -> tuple[Seconds, str]:
    """Time one intersection by openmined-psi in both roles; return its version."""
    result = common.by_peer(python, PEER, "openmined-psi", str(rows), structure)
    if result["common"] != rows - rows // 2:
        common.fail(f"openmined-psi finds {result['common']} common ids instead of {rows - rows // 2}")
    return result["seconds"], result["version"]


def without_gmpy2() -> float:
    """CPU seconds to compute points without gmpy2."""
    found: Seconds = {}
    with mock.patch.object(points, "jacobi", points.euler):
        timed(found, "all", points.points_of, ids_between(0, WITHOUT), bytes(32))
    return found["all"]


def steps_of(fedboost: list[Seconds], larger: Seconds, options: Any) -> common.Table:
    """Table of the steps of fedboost."""
    rows = []
    for step in STEPS:
        rate = 1e6 * statistics.median(found[step] for found in fedboost) / (2 * options.rows)
        rows.append(
            (step, common.spread([f[step] for f in fedboost], 2), f"{rate:.1f}", f"{larger[step]:.1f}")
        )
    return common.Table(
        f"fedboost, CPU seconds of two parties: median (least - most) of {options.repeats}",
        ("step", f"{options.rows:,} ids each", "us an id of a list", f"{options.larger:,} each, once"),
        rows,
    )


def against(
    fedboost: list[Seconds],
    larger: Seconds,
    peers: dict[str, list[Seconds]],
    release: str,
    without: float,
    options: Any,
) -> common.Table:
    """Table of the totals, with the claims."""
    totals = {name: [sum(one.values()) for one in found] for name, found in peers.items()}
    own, whole = [sum(one.values()) for one in fedboost], sum(larger.values())
    least = min(map(statistics.median, totals.values()), default=None)
    claim = "" if least is None else f"<= {least:.1f}"
    holds = "" if least is None else verdict(statistics.median(own) <= least)
    rows = [("fedboost", f"{options.rows:,}", common.spread(own, 1), claim, holds)]
    rows += [
        (f"openmined-psi {release}, {name}", f"{options.rows:,}", common.spread(found, 1), "", "")
        for name, found in totals.items()
    ]
    rows.append(("fedboost", f"{options.larger:,}", f"{whole:.1f}", f"< {MOST:.0f}", verdict(whole < MOST)))
    return common.Table(
        "From ids to the row indices of common ids, CPU seconds of two parties on one core",
        ("side", "ids each", "CPU seconds", "claim", "holds"),
        rows,
        [f"Without gmpy2, points of ids take {without:.0f} us per id."],
    )


if __name__ == "__main__":
    main()
