"""Does any of a million malformed messages cause a crash, or does memory grow?

    python benchmarks/robustness/malformed.py [--messages N] [--seed N]

Damages real messages of small trainings (plain, masked, leafwise, row weights) in seeded ways, and passes
each to its decoder. Every second message that can be read goes to a session in the middle of a training, at
the aggregator or a party. Half of these are made from the message that is due there, the others from any
message of that training. The same seed repeats a run.

The claims: decoders raise only fedboost's own errors. Sessions raise nothing, not even a warning, and never
end without a reason. Resident memory grows by at most 32 MiB after the first tenth. Exit status 1 if a
claim does not hold.
"""

import hashlib
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import one_paillier
import pytest
from captured import DECODERS, TRAININGS, corpus, terms_of
from mutants import mutate
from sessions import sites, train

import fedboost as fb
from fedboost.boosting.programs import boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.privacy.rowsums import ends
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import FromParty, ToParty
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.wire.messages import decode_from_party, decode_to_party

GROWTH_AT_MOST = 32 << 20
"""Allowed growth of resident memory in bytes: allocators keep some freed memory."""
WARM_UP = 10
"""The memory is compared with that after one message in so many: compiled code and caches are there then."""
ME = "p0"


@dataclass(frozen=True)
class Signing:
    """A signer that signs the same message the same way, so that a session can be repeated."""

    signer: Any

    @property
    def certificate(self) -> bytes:
        return self.signer.certificate

    def sign(self, message: bytes) -> bytes:
        return _signature(self.signer, message)


@cache
def _signature(signer: Any, message: bytes) -> bytes:
    return signer.sign(message)


@cache
def _signers(name: str) -> dict[str, Site]:
    places = {}
    for party, site in sites(name).items():
        credentials = site.credentials and replace(site.credentials, signer=Signing(site.credentials.signer))
        places[party] = replace(site, credentials=credentials)
    return places


def places(name: str) -> dict[str, Site]:
    """The sites of a training, with the same randomness each time."""
    return {
        party: replace(site, draw=Random(hashlib.sha256(party.encode()).digest()).randbytes, memory=None)
        for party, site in _signers(name).items()
    }


def repeat_keys() -> None:
    """Give the key holder of each session the same key and proof."""
    patch, prove = pytest.MonkeyPatch(), ends.prove
    one_paillier.fix(patch)
    known: dict[bytes, bytes] = {}

    def once(secret: Any, context: bytes) -> bytes:
        return known.get(context) or known.setdefault(context, prove(secret, context))

    patch.setattr(ends, "prove", once)


@cache
def script(name: str) -> tuple[list[tuple[str, bytes]], list[bytes]]:
    """Messages that the aggregator receives in a training, and those that ME receives."""
    delivered = train(name, at=places(name)).delivered
    return delivered["up"], [data for party, data in delivered["down"] if party == ME]


def at_aggregator(name: str, place: int, message: FromParty) -> str:
    """Pass this message to an aggregator's session in place of the one that is due there."""
    up, _ = script(name)
    session = AggregatorSession("fuzz", terms_of(name), boosting.train, INITIAL_STATE)
    session.start()
    for party, data in up[:place]:
        session.handle(party, decode_from_party(data))
    session.handle(up[place][0], message)
    if session.error is not None:
        assert isinstance(session.error, fb.FedboostError)
        assert str(session.error)
        return "failed"
    return "went on" if session.awaited else "ended"


def at_party(name: str, place: int, message: ToParty) -> str:
    """Pass it to a party's session."""
    _, down = script(name)
    session = PartySession(places(name)[ME])
    for data in down[:place]:
        for _ in session.handle(decode_to_party(data)):
            pass
    assert session.ended is None, session.ended
    for _ in session.handle(message):
        pass
    return "went on" if session.ended is None else "failed" if session.ended else "ended"


def resident() -> int:
    """Bytes of this process in memory."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def main() -> None:
    """Send all messages."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--messages", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    options = parser.parse_args()
    warnings.simplefilter("error")
    repeat_keys()
    outcomes: Counter[tuple[str, str]] = Counter()
    memory = {0: resident()}
    marks = {options.messages * share // 100: share for share in (WARM_UP, 25, 50, 75, 100)}
    start = time.perf_counter()
    for number in range(1, options.messages + 1):
        draw = Random(options.seed * options.messages + number)
        try:
            outcomes[send(draw)] += 1
        except BaseException:
            print(f"message {number} of seed {options.seed}", file=sys.stderr)
            raise
        if number in marks:
            memory[marks[number]] = resident()
            print(f"{number:,} messages, {resident() >> 20} MiB", file=sys.stderr)
    report(options, outcomes, memory, time.perf_counter() - start)


def send(draw: Random) -> tuple[str, str]:
    """Send one malformed message; return its decoder and the outcome."""
    shape = draw.randrange(20)
    if shape < 2:
        kind = ("train_event", "train_request")[shape]
        data = mutate(draw, draw.choice(corpus()[kind]), corpus()[kind])
        return kind, "refused" if decoded(kind, data) is None else "read"
    name = draw.choice([*TRAININGS])
    up, down = script(name)
    kind = draw.choice(("from_party", "to_party"))
    pool = [data for _, data in up] if kind == "from_party" else down
    place = int(len(pool) * draw.random() ** 3)  # early ones more often, because they are reached sooner
    base = pool[place] if draw.random() < 0.5 else draw.choice(pool)
    message = decoded(kind, mutate(draw, base, tuple(pool)))
    if message is None:
        return kind, "refused"
    if draw.random() < 0.5:
        return kind, "read"
    hear: Any = at_aggregator if kind == "from_party" else at_party
    return kind, f"read, session {hear(name, place, message)}"


def decoded(kind: str, data: bytes) -> Any:
    """The decoded message, or None if it is refused."""
    try:
        return DECODERS[kind](data)
    except fb.FedboostError:
        return None


def report(options: Any, outcomes: Counter[tuple[str, str]], memory: dict[int, int], seconds: float) -> None:
    """The tables, the JSON file, and the verdict on the memory."""
    rows = [(f"{kind}: {what}", f"{count:,}") for (kind, what), count in sorted(outcomes.items())]
    title = f"{options.messages:,} malformed messages in {seconds:.0f} s"
    tables = [common.Table(title, ("outcome", "messages"), rows)]
    rows = [(f"{share} %", f"{size / 2**20:.1f}") for share, size in memory.items()]
    grown = max(memory.values()) - memory[WARM_UP]
    held = f"Grown by {max(grown, 0) / 2**20:.1f} MiB, claimed at most {GROWTH_AT_MOST >> 20}: "
    held += common.verdict(grown <= GROWTH_AT_MOST)
    tables.append(common.Table("Resident memory", ("after", "MiB"), rows, [held]))
    common.publish(
        options,
        tables,
        {
            "messages": options.messages,
            "seconds": seconds,
            "outcomes": {f"{kind}: {what}": count for (kind, what), count in sorted(outcomes.items())},
            "resident": memory,
        },
    )
    if grown > GROWTH_AT_MOST:
        print(f"memory grew by {grown >> 20} MiB, more than {GROWTH_AT_MOST >> 20}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
