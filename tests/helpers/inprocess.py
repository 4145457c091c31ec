"""A whole session in one process, for tests: the two sessions of the protocol and a queue between them.

Messages wait in one channel a party and direction; a seeded draw says which channel moves next, so that what
different parties say arrives in any order, while what one party says stays in order.
"""

import os
from collections import deque
from datetime import UTC, datetime

import numpy as np

from fedboost.boosting.programs.boosting import train as boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.gbdt.sampling import mixed
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Shard
from fedboost.privacy.identity import in_memory
from fedboost.privacy.packing import Segment, chunks_of, signed
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site, TransientMemory
from fedboost.terms.terms import Terms


def pack(values, *segments):
    """Integers, few enough for one part, as these runs of cells: (cells, bits)."""
    (part,) = chunks_of(tuple(Segment(*run) for run in segments))
    return part.packed(np.array(values, np.int64).view(np.uint64))


def unpack(packed, *segments):
    """The integers in such cells, int64."""
    segments = tuple(Segment(*run) for run in segments)
    (part,) = chunks_of(segments)
    words = np.zeros(part.cells, np.uint64)
    part.add_sparsely(words, packed)
    return signed(words, segments)


def shard_of(X, y, weight=None, rows=slice(None), validation=None, base_margin=None, group=None):
    """The rows of a party: X [rows, features], NaN = missing; y [rows], or [2, rows] where labels are
    intervals. Keys are their places among all rows."""
    label = np.asarray(y, np.float32)[..., rows]
    weights = np.ones(label.shape[-1]) if weight is None else np.asarray(weight)[rows]
    columns = tuple(np.ascontiguousarray(column, np.float32) for column in np.asarray(X)[rows].T)
    keys = mixed(np.arange(len(X), dtype=np.uint64))[rows]
    flags = None if validation is None else np.asarray(validation, bool)[rows]
    base = None if base_margin is None else np.asarray(base_margin, np.float32)[rows]
    groups = None if group is None else mixed(np.asarray(group, np.uint64))[rows]
    weights = weights.astype(np.float32)
    return Shard(columns, label, weights, keys=keys, validation=flags, base_margin=base, group=groups)


def terms_of(
    X,
    parties,
    weight=None,
    validation=None,
    base_margin=None,
    group=None,
    levels=(),
    ranges=None,
    label_range=None,
    **settings,
):
    """Terms for `parties` parties over features f0, f1, ...; plain unless set otherwise. The last features
    are categorical, with so many levels each."""
    features = [f"f{i}" for i in range(X.shape[1])]
    numeric = features[: len(features) - len(levels)]
    last = dict(zip(features[len(numeric) :], levels, strict=True))
    categorical = {name: [f"level {level}" for level in range(size)] for name, size in last.items()}
    columns = {"label": "y", "numeric": numeric, "categorical": categorical}
    columns |= {"label_upper_bound": "z"} if settings.get("objective", "").startswith("survival") else {}
    columns |= {} if weight is None else {"weight": "w"}
    columns |= {} if validation is None else {"validation": "v"}
    columns |= {} if base_margin is None else {"base_margin": "m"}
    columns |= {} if label_range is None else {"label_range": label_range}
    columns |= {} if ranges is None else {"ranges": dict(zip(numeric, ranges, strict=True))}
    columns |= {} if group is None else {"group": "q"}
    names = [f"p{i}" for i in range(parties)]
    return Terms.read({"columns": columns, "parties": names, "protection": "plain", **settings})


def one_party(rows):
    """The partition in which one party has all rows."""
    return [np.arange(rows)]


def randomly(rows, parties, seed=0):
    """A partition of the rows into non-empty random parts."""
    owner = np.random.default_rng(seed).integers(0, parties, rows)
    owner[:parties] = np.arange(parties)
    return [np.flatnonzero(owner == party) for party in range(parties)]


def sites_of(terms, shards, draw=os.urandom):
    """A place for each party, with a memory of its own; with keys if the protection needs them."""
    credentials = {}
    if terms.hiding.protection != "plain":
        now = datetime.now(UTC)
        signers, roots = in_memory(terms.parties, now)
        credentials = {name: Credentials(signer, roots, (), lambda: now) for name, signer in signers.items()}
    return {
        name: Site(
            name,
            holder_for(lambda _, own=own: own, name),
            os.urandom,
            credentials.get(name),
            memory=TransientMemory(draw, name),
        )
        for name, own in shards.items()
    }


def run(
    X,
    y,
    parts,
    weight=None,
    delivery=0,
    spoil=None,
    program=boosting,
    validation=None,
    base_margin=None,
    group=None,
    memory_draw=os.urandom,
    sites=None,
    callbacks=(),
    record=lambda record: None,
    past=(),
    **settings,
):
    """Train over a partition of the rows; the aggregator's session when nothing is left to say.

    `spoil(party, message)` may return another message instead of one a party sent. `sites`: those of an
    earlier run, which remember it; an empty dict is filled.
    """
    terms = terms_of(X, len(parts), weight, validation, base_margin, group, **settings)
    places = zip(terms.parties, parts, strict=True)
    shards = {name: shard_of(X, y, weight, rows, validation, base_margin, group) for name, rows in places}
    sites = {} if sites is None else sites
    if not sites:
        sites |= sites_of(terms, shards, memory_draw)
    kept = {"record": record, "past": past, "callbacks": callbacks}
    session = session_of(terms, sites, program, delivery, spoil, **kept)
    session.sites = sites
    return session


def session_of(terms, sites, program=boosting, delivery=0, spoil=None, told=None, name="s", **kept):
    """As `run`, of parties at these places. told(party, message) may return another message for a party.
    `ends` of the session has the parties."""
    ends = {party: PartySession(site) for party, site in sites.items()}
    aggregator = AggregatorSession(name, terms, program, INITIAL_STATE, draw=os.urandom, **kept)
    aggregator.ends = ends
    down = {name: deque() for name in terms.parties}
    up = {name: deque() for name in terms.parties}
    draw = np.random.default_rng(delivery)

    def send(outbox):
        for name, message in outbox:
            down[name].append(message)

    send(aggregator.start())
    while waiting := [(name, way) for name in terms.parties for way in (down, up) if way[name]]:
        name, way = waiting[int(draw.integers(len(waiting)))]
        message = way[name].popleft()
        if way is down:
            up[name].extend(ends[name].handle(told(name, message) if told else message))
        else:
            send(aggregator.handle(name, spoil(name, message) if spoil else message))
    return aggregator


def model_of(*args, **settings):
    """The model text of `run`; raises what ended the session otherwise."""
    session = run(*args, **settings)
    if session.error:
        raise session.error
    assert session.phase == "done"
    return session.booster.to_xgboost()
