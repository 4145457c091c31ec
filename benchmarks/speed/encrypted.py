"""How many cells per second does `paillier` mask, encrypt, add and open, compared with plain phe?

    python benchmarks/speed/encrypted.py

Three parties have cells of 46 bits in 48-bit slots; CPU seconds on one core. phe has one cell per
ciphertext. The steps are:

- `mask`: a party adds the masks of two others, so that a vector that is opened alone is noise.
- `encrypt`: from integers to the sent bytes, with nothing prepared; `encrypt, full pool` with all random
  powers ready, as between two turns.
- `add`: the sum of three ciphertexts.
- `check`: from received bytes to validated ciphertexts, before they are added.
- `blind`: the aggregator's work on a sum before the key holder receives it.
- `decrypt`: the key holder's work, after a `check`, up to the bytes of its answer.

The claims, in cells/s with 2048 bits: encrypt 50,000, with a full pool 3,000,000, add 3,000,000, decrypt
11,000 in constant time; with 3072 bits half of these. A cell takes at most 13 bytes. Masks take at most a
hundredth of the encryption time.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import itertools
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
import numpy as np
from common import verdict
from phe.paillier import generate_paillier_keypair

from fedboost.privacy import paillier
from fedboost.privacy.packing import Chunk, Segment
from fedboost.privacy.pairwise import BENEATH, Group, PairMasks, PartySetup
from fedboost.privacy.protection import Tag
from fedboost.privacy.protections import scheme_of

PARTIES, BITS = 3, 46
NAMES = ("north", "south", "east")
CELLS = 42 * 63 * 2
PHE_CELLS = 10
CLAIMS = {
    "paillier, 2048 bits": (5_000_000, 50_000, 3_000_000, 3_000_000, 11_000, 13),
    "paillier, 3072 bits": (5_000_000, 25_000, 1_500_000, 1_500_000, 5_500, 13),
}
"""Cells/s to mask, to encrypt, with a full pool, to add and to decrypt, at least; bytes a cell, at most."""

Rates = dict[str, list[float]]


def main() -> None:
    """Measure phe, then `paillier`, with keys of each size."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--repeats", type=int, default=15, help="medians are taken over these (default 15)")
    options = parser.parse_args()
    measured: dict[str, Rates] = {}
    for bits in (2048, 3072):
        print(f"{bits} bits ...", file=sys.stderr)
        measured[f"phe alone, {bits} bits"] = phe_alone(bits, options.repeats)
        measured[f"paillier, {bits} bits"] = ours(bits, options.repeats)
    report(measured, options)


def phe_alone(bits: int, repeats: int) -> Rates:
    """Rates of one cell a ciphertext."""
    public, private = generate_paillier_keypair(n_length=bits)
    cells = [secrets.randbelow(1 << BITS) - (1 << (BITS - 1)) for _ in range(PHE_CELLS)]
    found: Rates = {"bytes": [2 * bits / 8]}

    def turn() -> list[int]:
        encrypted = timed(found, "encrypt", PHE_CELLS, lambda: [public.encrypt(cell) for cell in cells])
        timed(found, "add", PHE_CELLS, lambda: [cell + cell + cell for cell in encrypted])
        return timed(found, "decrypt", PHE_CELLS, lambda: [private.decrypt(cell) for cell in encrypted])

    if any(turn() != cells for _ in range(repeats)):
        common.fail("phe decrypts something else than it encrypted")
    return found


def ours(bits: int, repeats: int) -> Rates:
    """Rates of paillier and bytes per cell, for one part of cells."""
    part, rng = Chunk(0, [(CELLS, BITS)]), np.random.default_rng(0)
    words = rng.integers(0, 1 << BITS, CELLS, np.uint64)
    with mock.patch.object(paillier, "POOL", 0):
        secret = scheme_of("paillier").new_secret(bits)
        cipher = secret.public.cipher(part, PARTIES)
        size = len(cipher.encrypt(words))
        found: Rates = {"bytes": [size / CELLS]}

        keys = {name: secrets.token_bytes(32) for name in NAMES[1:]}
        setup = PartySetup(NAMES[0], Group.of(NAMES), bytes(32), lambda peers: keys, secrets.token_bytes)
        pairs = PairMasks(setup, BENEATH)
        turns = itertools.count()

        def masked() -> Any:
            tag = Tag(next(turns), 1, NAMES, bytes(32), (Segment(CELLS, BITS),))
            values = words.view(np.int64)
            pairs.begin(tag)
            return [part.residues(cells) for part, cells in pairs.masked(values, tag)]

        masked()  # what is compiled is, the first time

        def turn() -> Any:
            timed(found, "mask", CELLS, masked)
            sealed = timed(found, "encrypt", CELLS, lambda: cipher.encrypt(words))
            one, two, three = (timed(found, "check", CELLS, lambda: cipher.read(sealed)) for _ in range(3))
            total = timed(found, "add", CELLS, lambda: cipher.add(cipher.add(one, two), three))
            request, blind = timed(found, "blind", CELLS, lambda: cipher.blind(total, secrets.token_bytes))
            read = cipher.read(request)
            answer = timed(found, "decrypt", CELLS, lambda: secret.decrypt(read))
            return cipher.unblind(answer, blind)

        if not all(np.array_equal(turn(), 3 * words) for _ in range(repeats)):
            common.fail("paillier opens something else than the sum")
        secret.public.close()
    with_a_full_pool(secret.public, cipher, words, size, repeats, found)
    return found


def with_a_full_pool(public: Any, cipher: Any, words: Any, size: int, repeats: int, found: Rates) -> None:
    """Rate of `encrypt` with a full pool, after the thread that fills it has ended."""
    rows = size // (2 * public.bytes)
    with mock.patch.object(paillier, "POOL", repeats * rows):
        pool = public.pool()
    while len(pool) < repeats * rows:
        time.sleep(0.05)
    for _ in range(repeats):
        timed(found, "encrypt, full pool", len(words), lambda: cipher.encrypt(words))
    public.close()


def timed(found: Rates, what: str, cells: int, work: Callable[[], Any]) -> Any:
    """Run the work and add its rate to `found`."""
    start = time.process_time()
    result = work()
    found.setdefault(what, []).append(cells / (time.process_time() - start))
    return result


def report(measured: dict[str, Rates], options: Any) -> None:
    """The table and the JSON file."""
    kinds = ("mask", "encrypt", "encrypt, full pool", "add", "decrypt")
    rows = []
    for name, found in measured.items():
        claims = dict(zip((*kinds, "bytes"), CLAIMS.get(name, (None,) * 6), strict=True))
        for what in (*kinds[:4], "check", "blind", "decrypt"):
            if what in found:
                rates, least = found[what], claims.get(what)
                rate = statistics.median(rates)
                shown = [f"{figure:,.0f}" for figure in (rate, min(rates), max(rates))]
                holds = verdict(rate >= least) if least else ""
                claim = f"{least:,}" if least else ""
                rows.append((name, what, f"{shown[0]} ({shown[1]} - {shown[2]})", claim, holds))
        (size,), most = found["bytes"], claims["bytes"]
        rows.append(
            (name, "bytes a cell", f"{size:.1f}", str(most or ""), verdict(size <= most) if most else "")
        )
    table = common.Table(
        f"Cells/s, one core, 48-bit slots: median (least - most) of {options.repeats}",
        ("case", "work", "measured", "claim", "holds"),
        rows,
        ["A slot is 6 bytes of a ciphertext's plaintext."],
    )
    common.publish(options, [table], {"measured": measured, "bits": BITS, "parties": PARTIES})


if __name__ == "__main__":
    main()
