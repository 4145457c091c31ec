"""What do the sums of a tree over encrypted rows cost, compared with phe and HEU?

    python benchmarks/speed/rowsums.py [--peer-python PYTHON]

Generated float32 rows with logistic gradients; half of the columns are the label holder's, half are
foreign. The tree uses the best splits of both. Seconds are CPU time of all roles in one thread. Every
opened cell is compared with the plain sum. Work done once per session (keys, their proof, tables of powers)
is not included. The steps:

- `encrypt`: gradients and hessians of all rows, at the label holder.
- `take in`: at the feature holder, from bytes to checked numbers.
- `sums`: of the root and the smaller child of each split.
- `close`: from sums to the bytes of reports.
- `blind`: at the aggregator, including reading the reports.
- `open`: at the label holder, including the roots that prove the opening and a check of its own work.
- `check`: of the answer, at the aggregator, from which the sums are read.

phe, used as its documentation describes, encrypts gradient and hessian separately, without packing, and
sums each node. It is scaled to the tree from a few numbers. HEU is SecretFlow's library, with
Okamoto-Uchiyama (OU, its default) and with Paillier. Gradient and hessian are packed into one ciphertext,
also its default, the smaller children are summed, and sums are opened without blinds and proofs. It is
scaled to the tree from a sample of rows, in the interpreter of --peer-python.

The claims, for 100,000 rows x 10 foreign columns, depth 5, 32 bins: with AVX-512 IFMA 10 s with 2048 bits
and 26 s with 3072; 65 s with only gmpy2 and 2048 bits; at most a hundredth of phe's time.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
from common import generate, verdict
from phe.paillier import generate_paillier_keypair

from fedboost.gbdt.threads import ONE
from fedboost.privacy.paillier import PaillierSecret
from fedboost.privacy.paillier import generate as generate_key
from fedboost.privacy.rowsums.ends import blind, open_blinded, unblind
from fedboost.privacy.rowsums.kernels import may_compile
from fedboost.privacy.rowsums.scheme import Slots
from fedboost.privacy.rowsums.sums import Engine, EngineOf, KernelEngine, RowEncryption, RowSums

ROWS, FOREIGN, DEPTH, BINS = 100_000, 10, 5, 32
UNITS = 1 << 15
"""Fixed-point value of a gradient of 1."""
KERNELS, GMPY2 = "kernels", "gmpy2 alone"
CLAIMS = {(KERNELS, 2048): 10.0, (KERNELS, 3072): 26.0, (GMPY2, 2048): 65.0}
"""Claimed limits in seconds."""
OF_PHE = 0.01
PHE_NUMBERS = 30
PEER = Path(__file__).with_name("rowsums_peer.py")
SCHEMES = ("OU", "ZPaillier")
"""Schemes of HEU by name."""
SAMPLE = 5_000
"""Rows that HEU encrypts and sums."""
STAGES = ("encrypt", "take in", "sums", "close", "blind", "open", "check")

Seconds = dict[str, float]


@dataclass(frozen=True)
class Tree:
    """pairs: packed gradients, int64 [rows]; codes: bins of the foreign columns, uint8 [FOREIGN, rows];
    levels: the rows of the nodes that are summed, level by level."""

    pairs: Any
    codes: Any
    levels: list[list[Any]]

    def sums(self, rows: Any) -> Any:
        """The plain sums of a node: int64 [FOREIGN * BINS, 2]."""
        return histogram(self.pairs, self.codes, rows)


def main() -> None:
    """Measure each key size by kernels, if there are any, and the first by gmpy2 and phe, too."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--key-bits", type=int, nargs="+", default=[2048, 3072], metavar="BITS")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument(
        "--peer-python", metavar="PYTHON", help="an interpreter with sf-heu (default: HEU is not measured)"
    )
    options = parser.parse_args()
    tree, measured = grown(options.rows), dict[str, dict[str, Any]]()
    for bits in options.key_bits:
        secret = generate_key(bits)
        engines: dict[str, EngineOf] = {KERNELS: KernelEngine} if may_compile() else {}
        if bits == min(options.key_bits):
            engines[GMPY2] = Engine
        for name, engine in engines.items():
            print(f"{bits} bits, {name} ...", file=sys.stderr)
            measured[f"{bits} bits, {name}"] = ours(secret, tree, engine) | {"case": (name, bits)}
        print(f"{bits} bits, phe ...", file=sys.stderr)
        measured[f"{bits} bits, phe"] = of_phe(bits, options.rows) | {"case": ("phe", bits)}
    bits = min(options.key_bits)
    for scheme in SCHEMES if options.peer_python else ():
        print(f"HEU, {scheme} {bits} ...", file=sys.stderr)
        measured[f"HEU, {scheme} {bits}"] = of_heu(options.peer_python, scheme, bits, tree) | {
            "case": ("HEU", bits)
        }
    report(measured, options)


# ---- the tree ---------------------------------------------------------------------------------------


def histogram(pairs: Any, codes: Any, rows: Any) -> Any:
    """Sums of gradients and hessians by column and bin: int64 [columns * BINS, 2]."""
    gradients, hessians = (pairs[rows] >> 32).astype(float), (pairs[rows] & 0xFFFFFFFF).astype(float)
    sums = [
        np.stack([np.bincount(column[rows], of, BINS) for of in (gradients, hessians)], axis=1)
        for column in codes
    ]
    return np.concatenate(sums).astype(np.int64)


def grown(rows: int) -> Tree:
    """A tree on the gradients of the first round."""
    columns, label = generate(rows, 2 * FOREIGN)
    shares = np.linspace(0, 1, BINS + 1)[1:-1]
    codes = np.stack([np.searchsorted(np.quantile(v, shares), v) for v in columns.values()]).astype(np.uint8)
    pairs = (((0.5 - label) * UNITS).astype(np.int64) << 32) + UNITS // 4
    whole = np.arange(rows, dtype=np.uint32)
    nodes, levels = [whole], [[whole]]
    for _ in range(DEPTH - 1):
        children = [halves for node in nodes if len(halves := split(pairs, codes, node)) == 2]
        levels.append([min(halves, key=len) for halves in children])
        nodes = [child for halves in children for child in halves]
    return Tree(pairs, codes[FOREIGN:], levels)


def split(pairs: Any, codes: Any, rows: Any) -> list[Any]:
    """Row indices of both children of the best split; empty without a split."""
    sums = np.cumsum(histogram(pairs, codes, rows).reshape(len(codes), BINS, 2), axis=1).astype(float)
    rest = sums[:, -1:] - sums
    gain = sum(of[..., 0] ** 2 / (of[..., 1] + UNITS) for of in (sums, rest))
    column, bin_ = np.unravel_index(np.argmax(gain[:, :-1]), (len(codes), BINS - 1))
    left = codes[column, rows] <= bin_
    return [part for part in (rows[left], rows[~left]) if part.size]


# ---- what is measured -------------------------------------------------------------------------------


def ours(secret: PaillierSecret, tree: Tree, engine: EngineOf) -> dict[str, Any]:
    """Measure seconds of each stage, and bytes of gradients and sums."""
    rows, seconds = tree.pairs.size, dict.fromkeys(STAGES, 0.0)
    slots = Slots.of(UNITS, rows, secret.public.n.bit_length())
    encryption = RowEncryption(secret, slots, ONE, secrets.token_bytes, engine)
    powers = engine(secret.public.n, ONE)
    adder = RowSums(secret.public, slots, ONE, secrets.token_bytes, engine)
    warm = adder.read(encryption.encrypt(tree.pairs[:20]), 20)  # what is compiled is, the first time
    adder.close(adder.sums(warm, [(0, np.arange(20))], tree.codes[:2], [BINS] * 2))

    data = timed(seconds, "encrypt", lambda: encryption.encrypt(tree.pairs))
    entered = timed(seconds, "take in", lambda: adder.read(data, rows))
    sent = answered = 0
    for level in tree.levels:
        nodes = [(0, node) for node in level]
        bins = [BINS] * FOREIGN
        sums = timed(seconds, "sums", lambda: adder.sums(entered, nodes, tree.codes, bins))  # noqa: B023
        closed = timed(seconds, "close", lambda: adder.close(sums))  # noqa: B023
        cells = len(nodes) * FOREIGN * BINS
        found, size = opened(secret, slots, closed, cells, seconds, powers)
        if not np.array_equal(found, np.concatenate([tree.sums(node) for node in level])):
            common.fail("what was opened is something else than the plain sums")
        sent, answered = sent + len(closed), answered + size
    return {"seconds": seconds, "bytes": {"gradients": len(data), "sums": sent, "openings": answered}}


def opened(
    secret: PaillierSecret, slots: Slots, report: bytes, cells: int, seconds: Seconds, powers: Engine
) -> tuple[Any, int]:
    """The sums in a report, opened as in a session; bytes of the request and of the answer."""
    public, draw, count = secret.public, secrets.token_bytes, slots.ciphertexts(cells)
    request, kept = timed(seconds, "blind", lambda: blind(public, public.read(report, count), draw, powers))
    answer = timed(seconds, "open", lambda: open_blinded(secret, request, count))
    found = timed(seconds, "check", lambda: slots.read(unblind(public, answer, kept, "bank", draw), cells))
    return found, len(request) + len(answer)


def of_phe(bits: int, rows: int) -> dict[str, Any]:
    """Measure phe's stages on a few numbers, scaled to the tree."""
    public, private = generate_paillier_keypair(n_length=bits)
    values, few = [secrets.randbelow(UNITS) for _ in range(PHE_NUMBERS)], dict.fromkeys(STAGES, 0.0)
    encrypted = timed(few, "encrypt", lambda: [public.encrypt(value) for value in values])
    total = timed(few, "sums", lambda: [sum(encrypted[1:], encrypted[0]) for _ in range(20)])[0]
    found = timed(few, "open", lambda: [private.decrypt(total) for _ in range(PHE_NUMBERS)])
    if found != [sum(values)] * PHE_NUMBERS:
        common.fail("phe decrypts something else than the sum")
    cells = (2**DEPTH - 1) * FOREIGN * BINS
    times = {"encrypt": 2 * rows, "sums": 2 * rows * FOREIGN * DEPTH / 20, "open": 2 * cells}
    done = {"sums": PHE_NUMBERS - 1}
    seconds = {stage: few[stage] * times.get(stage, 0) / done.get(stage, PHE_NUMBERS) for stage in STAGES}
    return {
        "seconds": seconds,
        "bytes": {"gradients": 4 * rows * bits // 8, "sums": 4 * cells * bits // 8, "openings": 0},
    }


def of_heu(python: str, scheme: str, bits: int, tree: Tree) -> dict[str, Any]:
    """Measure HEU's stages and bytes on a sample of rows; return its version too."""
    words = (scheme, *map(str, (bits, SAMPLE, FOREIGN, BINS)))
    few = common.by_peer(python, PEER, "sf-heu", *words)
    nodes = [node.size for level in tree.levels for node in level]
    times = {"encrypt": tree.pairs.size / SAMPLE, "sums": sum(nodes) / SAMPLE, "open": len(nodes)}
    return {
        "seconds": {stage: few["seconds"].get(stage, 0) * times.get(stage, 0) for stage in STAGES},
        "bytes": {
            "gradients": few["bytes"]["gradients"] * times["encrypt"],
            "sums": few["bytes"]["sums"] * times["open"],
            "openings": 0,
        },
        "version": few["version"],
    }


def timed(found: Seconds, what: str, work: Callable[[], Any]) -> Any:
    """The result of the work, whose seconds are added to what was found."""
    start = time.process_time()
    result = work()
    found[what] += time.process_time() - start
    return result


def report(measured: dict[str, dict[str, Any]], options: Any) -> None:
    """The table and the JSON file."""
    rows, whole = [], {name: sum(of["seconds"].values()) for name, of in measured.items()}
    for name, of in measured.items():
        (side, bits), stages = of["case"], [f"{of['seconds'][stage]:,.2f}" for stage in STAGES]
        sent = [f"{size / 1e6:,.2f}" for size in of["bytes"].values()]
        most, beside = CLAIMS.get(of["case"]), whole[f"{bits} bits, phe"]
        holds = ""
        if most and options.rows == ROWS:
            holds = verdict(whole[name] <= most and (side == GMPY2 or whole[name] <= OF_PHE * beside))
        claim = f"{most:.0f}" if most else ""
        rows.append((name, *stages, f"{whole[name]:,.2f}", claim, holds, *sent))
    notes = [f"phe: scaled from {PHE_NUMBERS} numbers; it sums and opens every node."]
    if release := next((of["version"] for of in measured.values() if "version" in of), None):
        notes += of_peer(release)
    table = common.Table(
        f"CPU seconds a tree, {options.rows:,} rows x {FOREIGN} foreign columns, depth {DEPTH}, {BINS} bins",
        ("case", *STAGES, "all", "claim", "holds", "MB of gradients", "of sums", "of openings"),
        rows,
        notes,
    )
    common.publish(options, [table], {"measured": measured})


def of_peer(release: str) -> list[str]:
    """Notes on HEU."""
    return [
        f"HEU {release}: scaled from {SAMPLE:,} rows in one node and its {FOREIGN} x {BINS} sums to the rows"
        " and nodes summed here; one core. Its sums are opened without blinds and proofs.",
        "OU protects less: opening a plaintext beyond its prime p reveals p, which decrypts everything, and"
        " the party that requests openings can make such a plaintext."
        " HEU's decrypt_in_range, measured here, refuses those; its decrypt does not.",
    ]


if __name__ == "__main__":
    main()
