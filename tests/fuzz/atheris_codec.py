"""A longer target, led by coverage: what the generators of this folder do not think of.

    pip install atheris
    PYTHONPATH=.:tests/helpers python tests/fuzz/atheris_codec.py -max_total_time=120 FOLDER

The project does not need atheris otherwise, and pytest does not collect this file. FOLDER keeps the inputs
that reached new code, so that the next run goes on from there; it is filled with real messages first. The
first byte of an input chooses the decoder. What can be read must be written and read again as the same bytes,
and a message goes on to a session in which nothing has happened yet. Other options are libFuzzer's.
"""

import sys
from pathlib import Path

import atheris

COMPILED = ["fedboost.gbdt.kernels", "fedboost.privacy.kernels"]
"""numba does not take instrumented functions."""

with atheris.instrument_imports(include=["fedboost"], exclude=COMPILED):
    from captured import DECODERS, ENCODERS, corpus, terms_of
    from sessions import heard, sites

    from fedboost.boosting.programs import boosting
    from fedboost.boosting.state import INITIAL_STATE
    from fedboost.errors import FedboostError
    from fedboost.protocol.aggregator import AggregatorSession
    from fedboost.protocol.party import PartySession

KINDS = tuple(DECODERS)
TERMS = terms_of("plain")


def try_one(data: bytes) -> None:
    """One input; whatever is raised here is a defect."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    try:
        message = DECODERS[kind](data[1:])
    except FedboostError:
        return
    again = ENCODERS[kind](message)
    assert ENCODERS[kind](DECODERS[kind](again)) == again
    if kind == "to_party":
        heard(PartySession(sites("plain")["p0"]), message)
    elif kind == "from_party":
        aggregator = AggregatorSession("fuzz", TERMS, boosting.train, INITIAL_STATE)
        aggregator.start()
        aggregator.handle("p0", message)


def seed(folder: Path) -> None:
    """Put the real messages into a folder, unless something is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return
    for place, kind in enumerate(KINDS):
        for number, data in enumerate(corpus()[kind]):
            (folder / f"{kind}-{number}").write_bytes(bytes([place]) + data)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if not name.startswith("-"):
            seed(Path(name))
    atheris.Setup(sys.argv, try_one)
    atheris.Fuzz()
