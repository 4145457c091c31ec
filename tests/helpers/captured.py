"""What was really said: messages of small trainings, captured where the simulation hands them to the codec.

Nothing here knows which messages there are: whatever a training says is captured.
"""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from unittest import mock

import numpy as np

from fedboost.protocol.messages import Request
from fedboost.runtime.local import simulation
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Result
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.wire import codec
from fedboost.wire.messages import (
    CheckReply,
    CheckRequest,
    Failed,
    Member,
    ModelPart,
    Objections,
    Review,
    RoundDone,
    SessionState,
    SessionStatus,
    SiteReply,
    Status,
    TrainRequest,
    Waiting,
    decode_check_reply,
    decode_check_request,
    decode_from_party,
    decode_objections,
    decode_review,
    decode_status,
    decode_to_party,
    decode_train_event,
    decode_train_request,
    encode_check_reply,
    encode_check_request,
    encode_from_party,
    encode_objections,
    encode_review,
    encode_status,
    encode_to_party,
    encode_train_event,
    encode_train_request,
)

COLUMNS = {"label": "y", "numeric": ["a", "b"], "categorical": {"c": ["u", "v"]}}
SMALL = {"on_loss": "stop", "rounds": 2, "max_depth": 2, "max_bin": 8, "min_child_weight": 0}
TRAININGS = {
    "plain": {"protection": "plain", "parties": 2},
    "masked": {"protection": "masked", "parties": 3},
    "levels": {"protection": "plain", "parties": 2, "grow_policy": "lossguide", "max_leaves": 3},
    "weighted": {"protection": "plain", "parties": 2, "objective": "reg:squarederror", "weight": "w"},
    "vertical": {
        **{"protection": "plain", "parties": 3, "label_holder": "p0", "rows": "in_order"},
        "columns": {"held": {"p1": ["b"], "p2": ["c"]}},
    },
    "matched": {
        **{"protection": "plain", "parties": 3, "label_holder": "p0", "min_common_rows": 5},
        "columns": {"held": {"p1": ["b"], "p2": ["c"]}, "row_id": "id"},
    },
}
"""Settings of the terms by name, `parties` as a number."""
if find_spec("phe") and find_spec("gmpy2"):
    TRAININGS["hidden"] = {**TRAININGS["vertical"], "protection": "paillier", "key_bits": 2048}


def terms_of(name: str) -> Terms:
    """The terms of one of the trainings."""
    settings = dict(TRAININGS[name])
    parties, weight = settings.pop("parties"), settings.pop("weight", None)
    columns = {**COLUMNS, **({"weight": weight} if weight else {}), **settings.pop("columns", {})}
    return Terms.read({"columns": columns, "parties": [f"p{i}" for i in range(parties)], **SMALL, **settings})


@cache
def table(party: int) -> dict[str, object]:
    """The 30 rows of a party."""
    draw = np.random.default_rng(party)
    first, second = draw.normal(size=30).astype(np.float32), draw.normal(size=30).astype(np.float32)
    second[::7] = np.nan
    return {
        "a": first,
        "b": second,
        "c": [("u", "v")[i % 2] for i in range(30)],
        "y": (first > 0).astype(np.int64),
        "w": np.full(30, 2.0),
        "id": np.roll(np.arange(30), party) + party,
    }


@cache
def training(name: str) -> tuple[Result, tuple[bytes, ...], tuple[bytes, ...]]:
    """A training: its result, what the parties said, what the aggregator said; each message once."""
    said: dict[str, dict[bytes, None]] = {"from": {}, "to": {}}

    def kept(way, encode):
        def encode_and_keep(message):
            data = encode(message)
            said[way].setdefault(data)
            return data

        return encode_and_keep

    terms, kept_from = terms_of(name), kept("from", encode_from_party)
    with (
        mock.patch.object(simulation, "size_from_party", lambda message: len(kept_from(message))),
        mock.patch.object(simulation, "encode_to_party", kept("to", encode_to_party)),
    ):
        result = simulate(terms, {party: table(i) for i, party in enumerate(terms.parties)})
    return result, tuple(said["from"]), tuple(said["to"])


def outside_of_sessions() -> dict[str, tuple[bytes, ...]]:
    """Messages of checks and of the status, written down: no training says them."""
    request = Request(b"n" * 32, 1_700_000_000, b"certificate", b"signature")
    texts = [terms_of(name).canonical() for name in TRAININGS]
    sentences = ("its policy has max_depth = 8", "column 'x' is missing"), ("a person there is asked",)
    session = SessionStatus(
        SessionState.RUNNING, "session-1", "marie", "ab" * 32, "boosting", "masked", 3, 50, 1_700_000_000,
        ("p0", "p1"), ("p1",),
    )  # fmt: skip
    members = [Member("party", "p0", 1, 1, VERSION), Member("party", "p1"), Member("analyst", "marie", 1, 1)]
    waits = replace(session, state=SessionState.WAITING, name="", done=0)
    statuses = [Status(VERSION, 1, 2, tuple(members[:n]), (session, waits)[:n], others=n) for n in range(4)]
    numbered = [Objections(n, *sentences) if n else Objections(n) for n in range(4)]
    return {
        "check_request": tuple(encode_check_request(CheckRequest(text, request)) for text in texts),
        "review": tuple(encode_review(Review(n, text, request)) for n, text in enumerate(texts)),
        "objections": tuple(map(encode_objections, numbered)),
        "check_reply": tuple(
            encode_check_reply(CheckReply([SiteReply(f"p{i}", bool(i), *sentences) for i in range(n)]))
            for n in range(4)
        ),
        "status": tuple(map(encode_status, statuses)),
    }


@cache
def corpus() -> dict[str, tuple[bytes, ...]]:
    """Messages for each decoder: real ones of sessions, and those of checks and of the status."""
    from_party, to_party, events, requests = [], [], [], []
    for name in TRAININGS:
        result, up, down = training(name)
        from_party += up
        to_party += down
        traffic = result.traffic
        events += [
            RoundDone(number, dict(row), 0.5, traffic) for number, row in enumerate(result.model.rounds)
        ]
        events.append(ModelPart(result.model.to_bytes()[:1000], True, traffic))
        requests.append(encode_train_request(TrainRequest(terms_of(name).canonical())))
    events += [Waiting(("p0", "p1")), Waiting(("p0", "p1"), {"p0": 1_700_000_000, "p1": 0})]
    events.append(Failed("site p1 left"))
    return {
        "from_party": tuple(from_party),
        "to_party": tuple(to_party),
        "train_event": tuple(map(encode_train_event, events)),
        "train_request": tuple(requests),
        **outside_of_sessions(),
    }


def read_train_request(data):
    """The terms of an analyst, read, the command for their session, and the signed request."""
    text, *rest = decode_train_request(data)
    return codec.terms_of(text), *rest


def read_check_request(data):
    """The terms of a check, read, and who signed it."""
    text, request = decode_check_request(data)
    return codec.terms_of(text), request


DECODERS = {
    "from_party": decode_from_party,
    "to_party": decode_to_party,
    "train_event": decode_train_event,
    "train_request": read_train_request,
    "check_request": read_check_request,
    "review": decode_review,
    "objections": decode_objections,
    "check_reply": decode_check_reply,
    "status": decode_status,
}
ENCODERS = {
    "from_party": encode_from_party,
    "to_party": encode_to_party,
    "train_event": encode_train_event,
    "train_request": lambda request: encode_train_request(TrainRequest(request[0].canonical(), request[1])),
    "check_request": lambda check: encode_check_request(CheckRequest(check[0].canonical(), check[1])),
    "review": encode_review,
    "objections": encode_objections,
    "check_reply": encode_check_reply,
    "status": encode_status,
}
