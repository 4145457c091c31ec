"""Messages that hypothesis generates."""

import itertools

import numpy as np
from hypothesis import strategies as st

from fedboost.boosting.queries.columns import (
    BinCountsQuery,
    BinsQuery,
    LevelsQuery,
    QuantileQuery,
    RangeQuery,
    SummaryQuery,
)
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.queries.labels import (
    EvaluationQuery,
    LevelSumsQuery,
    MagnitudesQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
    TimeGrid,
    TimesQuery,
)
from fedboost.boosting.queries.trees import Elected, EndRoundQuery, HistogramQuery, SumsQuery, VoteQuery
from fedboost.boosting.state import BoostingState, Round, Scales
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grids
from fedboost.gbdt.metrics import METRICS
from fedboost.gbdt.tree import Split, Splits
from fedboost.privacy.packing import Segment
from fedboost.protocol.adding import Addition, Cut, From, Gone, Held, Here, RegionSum, To
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    Introduce,
    Join,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Relay,
    Report,
    Request,
    SessionEnded,
)
from fedboost.terms.terms import Terms
from fedboost.wire.messages import Failed, ModelPart, RoundDone, Waiting

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
rows = st.integers(1, 2**48 - 1)
words = st.text(max_size=20)
characters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="[]<")
names = st.text(characters, min_size=1, max_size=10)
scales = st.builds(Scale, st.integers(-256, 256), st.integers(1, 32))
levels = st.one_of(st.just(0), st.integers(0, 2**256 - 1))
u31 = st.integers(0, 2**31 - 1)
splits = st.lists(st.builds(Split, u31, u31, u31, st.booleans(), u31, levels), max_size=4).map(Splits.of)


@st.composite
def terms(draw):
    columns = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    categorical = {columns.pop(): draw(st.lists(names, min_size=1, max_size=3, unique=True))}
    return Terms.read(
        {
            "columns": {"label": columns[0], "numeric": columns[1:], "categorical": categorical},
            "parties": draw(st.lists(st.sampled_from("abcdef"), max_size=3, unique=True)),
            "rounds": draw(st.integers(1, 100_000)),
            "learning_rate": draw(st.floats(0, 1, exclude_min=True)),
            "reg_lambda": draw(st.floats(0, 1e300)),
            "program": draw(names),
            "protection": "plain",
        }
    )


@st.composite
def grids(draw):
    starts, widths, subdivisions, place = [], [], [], 0
    for _ in range(draw(st.integers(0, 5))):
        place += draw(st.integers(0, 2**30))
        width = draw(st.integers(0, KEY_BITS))
        if place + 2**width > 2**KEY_BITS:
            break
        starts.append(place)
        widths.append(width)
        subdivisions.append(draw(st.integers(0, min(width, 23))))
        place += 2**width
    return starts, widths, subdivisions


def grids_of(features):
    """Grids from the starts, widths and subdivisions of each feature."""
    members = zip(*features, strict=True) if features else ([], [], [])
    starts, widths, subdivisions = ([*itertools.chain(*member)] for member in members)
    ends = [0, *itertools.accumulate(len(starts) for starts, _, _ in features)]
    return Grids(
        np.array(ends),
        np.array(starts, np.uint32),
        np.array(widths, np.uint8),
        np.array(subdivisions, np.uint8),
    )


byte = st.integers(0, 255)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
cuts = st.lists(floats32, max_size=6).map(lambda values: np.unique(np.array(values, np.float32)))
cut_points = st.lists(st.tuples(cuts, st.booleans(), st.booleans()), max_size=4).map(
    lambda of: CutPoints.of(
        tuple(c for c, _, _ in of), tuple(m for _, m, _ in of), tuple(f for f, one in enumerate(of) if one[2])
    )
)
values = st.lists(st.tuples(u32, st.floats()), max_size=5).map(tuple)
few_numbers = st.lists(u32, max_size=5).map(tuple)
trees = st.integers(-1, 2**31 - 1)
residuals = st.builds(ResidualQuery, rows, trees, splits, few_numbers, few_numbers, u32, scales)
told_places = st.lists(st.lists(st.integers(-1, 2**31 - 1), max_size=3), max_size=4).map(
    lambda lists: (tuple(map(len, lists)), np.array([*itertools.chain(*lists)], np.int64))
)
few_slots = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
means = st.lists(st.tuples(st.lists(floats32, max_size=5), st.sampled_from([1, 6])), max_size=3).map(
    lambda columns: tuple(
        np.repeat(np.array(values, np.float32), folds).reshape(-1, folds) for values, folds in columns
    )
)
metrics = st.lists(st.sampled_from([*sorted(METRICS), "error@0.25", "tweedie-nloglik@1.9"]), max_size=3).map(
    tuple
)
times = st.lists(st.floats(), max_size=3).map(tuple)
finite_times = st.lists(st.floats(allow_nan=False), max_size=3).map(tuple)
names_of_sets = st.lists(words, max_size=2).map(tuple)
queries = st.one_of(
    st.builds(RangeQuery, rows, st.integers(0, 1000), st.sampled_from([128, 512])),
    st.builds(
        BinCountsQuery,
        st.lists(st.integers(1, 256), max_size=4).map(tuple),
        st.integers(1, 1000),
        st.integers(0, 1000),
    ),
    st.builds(
        SummaryQuery,
        st.integers(0, 1000),
        st.lists(st.integers(0, 255), max_size=4).map(tuple),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.integers(0, 1000),
        names_of_sets,
    ),
    st.builds(LevelsQuery, st.integers(1, 16), few_slots, few_slots, few_slots),
    st.builds(MagnitudesQuery, metrics),
    st.builds(
        EvaluationQuery,
        rows,
        metrics,
        names_of_sets,
        names_of_sets,
        st.booleans(),
        st.integers(0, 1000),
        st.floats(0, 1, exclude_min=True, exclude_max=True),
        scales,
        st.lists(st.floats(), max_size=3).map(tuple),
    ),
    st.builds(SumsQuery, rows, u32, splits, few_numbers),
    st.builds(IdCountQuery, st.integers(1, 1000)),
    st.builds(AlignQuery, few_numbers),
    st.builds(lambda rows, told: PlacesQuery(rows, *told), rows, told_places),
    st.builds(lambda rows, told: ReachQuery(rows, *told), rows, told_places),
    st.builds(RowsQuery),
    st.builds(QuantileQuery, rows, st.lists(grids(), max_size=3).map(grids_of), st.none() | scales),
    st.builds(BinsQuery, st.integers(0, 1000)),
    st.builds(LevelSumsQuery, rows, few_slots, scales, scales, st.booleans(), st.none() | scales),
    st.builds(StartQuery, rows, cut_points, scales, scales, means),
    st.builds(TimesQuery, rows, times, scales, names_of_sets),
    st.builds(StartQuery, rows, cut_points, scales, scales, means, st.builds(TimeGrid, times, times, times)),
    st.builds(
        HistogramQuery,
        rows,
        u32,
        splits,
        st.lists(u32, max_size=5).map(tuple),
        u32,
        scales,
        scales,
        st.lists(st.tuples(byte, byte), max_size=5).map(
            lambda pairs: bytes(w for pair in pairs for w in pair)
        ),
        st.lists(st.builds(Elected, st.lists(u32, max_size=4).map(tuple), u32), max_size=4).map(tuple),
        st.floats(),
        st.booleans(),
        times,
    ),
    st.builds(VoteQuery, rows, u32, splits, st.lists(u32, max_size=5).map(tuple), u32, u32, scales, scales),
    residuals,
    st.builds(
        EndRoundQuery,
        rows,
        st.integers(-1, 2**31 - 1),
        splits,
        values,
        metrics,
        scales,
        st.booleans(),
        names_of_sets,
        st.booleans(),
        st.none() | scales,
        st.lists(u32, max_size=2).map(tuple),
    ),
)
few_bytes = st.binary(max_size=50)
relays = st.builds(
    Relay, u32, u32, u32, few_bytes, st.booleans(), st.lists(words, max_size=3).map(tuple), words
)
contexts = st.just(b"") | st.binary(min_size=32, max_size=32)
times = st.integers(-(1 << 63), (1 << 63) - 1)
requests = st.none() | st.builds(Request, few_bytes, times, few_bytes, few_bytes)
state = st.builds(
    BoostingState,
    u32,
    st.none() | st.builds(StartQuery, rows, cut_points, scales, scales, means),
    st.lists(st.builds(Round, splits, values), max_size=3).map(tuple),
    splits,
    u32,
    st.none() | st.builds(Scales, scales, scales, st.floats(allow_nan=False), finite_times),
    st.none() | residuals,
)
from_party = st.one_of(
    st.builds(Join, words, words, u32, few_bytes),
    st.builds(Report, u32, u32, u32, few_bytes, few_bytes, contexts),
    relays,
    st.builds(OpenShare, u32, u32, few_bytes),
    st.builds(Attest, u32, u32, few_bytes, few_bytes, few_bytes, few_bytes, few_bytes),
    st.builds(Leave, words),
)
to_party = st.one_of(
    st.builds(Offer, words, terms(), u32, requests),
    st.builds(Introduce, st.lists(few_bytes, max_size=3).map(tuple), state),
    st.builds(Ask, u32, u32, st.binary(max_size=32), queries),
    relays,
    st.builds(OpenRequest, u32, u32, few_bytes),
    st.builds(Close, u32, u32),
    st.builds(SessionEnded, words),
)
traffic = st.dictionaries(words, st.tuples(u64, u64), max_size=3)
train_events = st.one_of(
    st.builds(Waiting, st.lists(words, max_size=3).map(tuple), st.dictionaries(words, times, max_size=3)),
    st.builds(RoundDone, u32, st.dictionaries(words, st.floats(), max_size=3), st.floats(), traffic),
    st.builds(ModelPart, st.binary(max_size=50), st.booleans(), traffic),
    st.builds(Failed, words),
)
numbers_of_calls = st.lists(u32, max_size=4).map(tuple)
additions = st.builds(
    Addition,
    u32,
    u32,
    few_bytes,
    st.lists(st.builds(Segment, u64, u32), max_size=4).map(tuple),
    st.booleans(),
)
from_adder = st.one_of(
    st.builds(Here, u32, st.text(min_size=1, max_size=20), words),
    st.builds(Gone, u32, words),
    st.builds(From, u32, few_bytes, st.booleans()),
    st.builds(RegionSum, u32, u32, u32, few_bytes, contexts, numbers_of_calls, u32),
    st.builds(Held, u32, u32, numbers_of_calls),
)
to_adder = st.one_of(
    st.builds(To, numbers_of_calls, few_bytes, st.booleans(), st.booleans(), st.none() | additions),
    st.builds(Cut, u32, st.booleans(), words, words),
)
