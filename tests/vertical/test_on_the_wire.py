"""What travels between parties that hold different columns, and what of it the aggregator can read."""

import gc
import types
from collections import Counter
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from raised import raised

from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import PeerError
from fedboost.gbdt.histogram import STATS, Layout
from fedboost.privacy import pairwise
from fedboost.privacy.ends import PlainOpener
from fedboost.privacy.pairwise import open_sealed, sealed_size
from fedboost.privacy.protection import Tag
from fedboost.protocol.messages import Ask, Relay, Report
from fedboost.wire.messages import encode_from_party
from tests.helpers.apart_sessions import LOST, Apart, changed, once, sealing
from tests.helpers.columns_apart import pooled

DEEP = {"max_depth": 3, "rounds": 3}


def flipped(table):
    """The same table with the other label: the same trees with the opposite leaf values."""
    labels = 1 - table.column("y").to_numpy()
    return table.set_column(table.column_names.index("y"), "y", pa.array(labels))


def shuffled(table):
    return table.take(np.random.default_rng(5).permutation(table.num_rows))


# ---- sizes ----------------------------------------------------------------------------------------------


def sizes(apart):
    """Of each relay: who sent it to whom in which turn, and its bytes as a message."""
    out = []
    for party, message in apart.sent:
        if isinstance(message, Relay):
            size = len(encode_from_party(message))
            out.append((party, message.to, message.turn, message.number, size))
    return out


@pytest.mark.parametrize("layout", ["two holders", "three holders", "blocks"])
@pytest.mark.parametrize("other", [shuffled, flipped])
def test_relays_of_tables_that_differ_have_the_same_sizes_where_trees_have_the_same_shape(layout, other):
    table = pooled(200)
    if layout == "blocks" and other is shuffled:  # each block keeps its rows
        half = table.num_rows // 2
        parts = shuffled(table.slice(0, half)), shuffled(table.slice(half))
        tables = [table, pa.concat_tables(parts)]
    else:
        tables = [table, other(table)]
    one, another = (Apart(layout, each, **DEEP).play() for each in tables)
    shapes = [[list(tree.left) for tree in apart.session.booster.trees] for apart in (one, another)]
    assert shapes[0] == shapes[1]
    assert max(map(len, shapes[0])) > 7
    assert sizes(one) == sizes(another)
    assert len({size for *_, size in sizes(one)}) >= 2
    contents = [[relay.content for relay in apart.said(Relay)] for apart in (one, another)]
    assert not set(contents[0]) & set(contents[1])


@pytest.mark.parametrize("roots", [1, 3])
def test_a_row_set_has_a_bit_for_each_row_and_root_wherever_the_rows_are(roots, sealed):
    settings = DEEP if roots == 1 else {**DEEP, "objective": "multi:softprob", "num_class": 3}
    rows = 203
    apart = Apart(table=pooled(rows, label="binary" if roots == 1 else "classes"), **settings).play()
    assert apart.session.phase == "done"
    row_sets = [content for kind, content, _ in sealed if kind == "which rows go left"]
    assert {len(content) for content in row_sets} == {-(-roots * rows // 8)}
    left = [int.from_bytes(content).bit_count() for content in row_sets]
    assert min(left) < rows / 4 < max(left)
    assert {len(content) for kind, content, _ in sealed if kind == "gradients"} == {8 * roots * rows}
    by_turn = Counter(
        (party, relay.turn, relay.to) for party, relay in apart.sent if isinstance(relay, Relay)
    )
    assert max(by_turn.values()) <= 2  # row sets of a level once, gradients once


@pytest.fixture
def sealed(monkeypatch):
    """What parties sealed: kind, content, receivers."""
    out = []
    sealing(monkeypatch, lambda party, send, ask: out.append((send.kind, send.content, send.to)))
    return out


# ---- keys -----------------------------------------------------------------------------------------------


@pytest.fixture
def uses(monkeypatch):
    """The messages that were encrypted under each key and nonce."""
    out = {}

    class Counted:
        def __init__(self, key):
            self._key, self._cipher = bytes(key), AESGCM(key)
            self.decrypt = self._cipher.decrypt

        def encrypt(self, nonce, data, about):
            out.setdefault((self._key, nonce), []).append((data, about))
            return self._cipher.encrypt(nonce, data, about)

    monkeypatch.setattr(pairwise, "AESGCM", Counted)
    return out


def lose_at(*places):
    """A hook: at each of these messages, by their number among those of a party, it is lost."""
    counts = Counter()

    def hook(party, message):
        counts[party] += 1
        return LOST if (party, counts[party]) in places else None

    return hook


def check_keys(uses):
    assert len(uses) > 20
    assert {len(messages) for messages in uses.values()} == {1}


def test_no_key_encrypts_two_messages(uses):
    assert Apart(**DEEP).play().session.phase == "done"
    check_keys(uses)


@pytest.mark.parametrize("lost", ["bank", "telco", "shop"])
def test_no_key_encrypts_two_messages_where_attempts_restart(uses, lost):
    places = [(lost, number) for number in (8, 15, 16, 24, 33)]
    apart = Apart(down=lose_at(*places), **DEEP).play()
    assert (apart.session.phase, apart.session.attempt) == ("done", 5)
    check_keys(uses)


@pytest.mark.parametrize("died", ["bank", "telco"])
def test_no_key_encrypts_two_messages_where_a_process_dies_and_relays_again(uses, died):
    """It seals the same bytes again, of the same turn, with what its site remembers."""
    apart = Apart(**DEEP)
    relayed = Counter()

    def down(party, message):
        if party == died and isinstance(message, Ask) and message.query.splits is not None:
            relayed[message.turn] += 1
            if message.turn in (8, 11) and relayed[message.turn] == 1:
                list(apart.ends[died].handle(message))  # what it says is lost with it
                apart.crash(died)
                return LOST
        return None

    apart.down = down
    apart.play()
    assert (apart.session.phase, apart.session.attempt) == ("done", 3)
    check_keys(uses)


def test_a_question_that_is_repeated_relays_nothing_again(uses):
    def twice(party, message):
        return [message, message] if isinstance(message, Ask) else None

    apart = Apart(down=twice, **DEEP).play()
    assert apart.session.phase == "done"
    assert len(set(apart.said(Relay))) == len(apart.said(Relay))
    check_keys(uses)


# ---- the last splits of a tree --------------------------------------------------------------------------


@cache
def trained():
    apart = Apart(**DEEP).play()
    assert apart.session.phase == "done"
    return apart


def ends_tree(apart):
    return {ask.turn for ask in apart.heard(Ask, "bank") if ask.query.ends_tree}


def test_row_sets_of_the_last_splits_go_to_the_label_holder_alone():
    apart = trained()
    last = ends_tree(apart)
    receivers = Counter(
        (relay.to, relay.turn in last)
        for party, relay in apart.sent
        if party != "bank" and isinstance(relay, Relay)
    )
    assert receivers[("bank",), True] >= 2
    assert {to for (to, is_last) in receivers if is_last} == {("bank",)}
    assert all(len(to) == 2 for (to, is_last) in receivers if not is_last)


def keys_at(apart, party):
    """The secrets of a party in the attempt under way."""
    return apart.ends[party]._introduced.relays.keys


def test_a_feature_holder_does_not_open_a_row_set_of_the_last_splits():
    """Not even where the aggregator hands it to it, and it tries all that it has."""
    apart, tried = Apart(**DEEP), []

    def down(party, message):
        if party == "bank" and isinstance(message, Relay) and message.turn in ends_tree(trained()):
            other = {"telco": "shop", "shop": "telco"}[message.sender]
            relays = apart.ends[other]._introduced.relays
            for sender, secret in relays.keys.items():
                for number in range(1, 5):
                    context = relays._context(Ask(message.turn, 1, b"", None), number, "which rows go left")
                    for receiver in (other, "bank"):
                        with raised(PeerError, "relay-not-authentic"):
                            open_sealed(message.content, sender, receiver, secret, context)
                        with raised(PeerError, "relay-not-authentic"):
                            open_sealed(message.content, message.sender, receiver, secret, context)
                        tried.append(receiver)
        return None

    apart.down = down
    apart.play()
    assert len(tried) >= 16
    assert apart.session.booster == trained().session.booster


def test_a_feature_holder_does_not_forge_one():
    """It seals a row set of its own for the label holder; the aggregator says that it is another's."""
    turns = ends_tree(trained())
    apart = Apart(**DEEP)

    def forged(message):
        other = {"telco": "shop", "shop": "telco"}[message.sender]
        relays = apart.ends[other]._introduced.relays
        context = relays._context(Ask(message.turn, 1, b"", None), message.number, "which rows go left")
        keys = {"bank": relays.keys["bank"]}
        content = pairwise.seal(bytes(8), message.sender, keys, context, relays.draw)
        assert len(content) == len(message.content) == sealed_size(8, ["bank"])
        return changed(message, content=content)

    apart.down = once(lambda party, m: party == "bank" and isinstance(m, Relay) and m.turn in turns, forged)
    apart.play()
    (relay,) = apart.down.done
    assert apart.left("bank").startswith(f"the bytes relayed by party {relay.sender} cannot be decrypted")
    assert apart.session.booster is None


# ---- the memory of a party afterwards -------------------------------------------------------------------


def reachable(root):
    """All bytes that can be reached from an object, through whatever holds them but code and classes."""
    seen, waiting, found = set(), [root], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(
            each, type | types.ModuleType | types.FunctionType | types.CodeType
        ):
            continue
        seen.add(id(each))
        if isinstance(each, bytes | bytearray):
            found.add(bytes(each))
        waiting.extend(gc.get_referents(each))
    return found


@pytest.mark.parametrize("how", ["with a model", "by a leave", "by a restart"])
def test_the_keys_of_an_attempt_are_gone_with_it(how):
    apart, secrets = Apart(**DEEP), {}
    restart = once(lambda party, m: party == "shop" and isinstance(m, Ask) and m.turn == 8, lambda m: LOST)
    junk = once(
        lambda party, m: party == "telco" and isinstance(m, Relay) and m.turn == 8,
        lambda relay: changed(relay, number=7),
    )

    def down(party, message):
        if isinstance(message, Ask) and message.turn == 8 and message.attempt == 1:
            for name in apart.terms.parties:
                keys = {*keys_at(apart, name).values()}
                secrets.setdefault(name, keys)
                assert keys <= reachable(apart.ends[name])
        return {"by a leave": junk, "by a restart": restart}.get(how, lambda *_: None)(party, message)

    apart.down = down
    apart.play()
    assert apart.session.phase == ("failed" if how == "by a leave" else "done")
    assert set(secrets) == {*apart.terms.parties}
    for name, keys in secrets.items():
        assert len(keys) == 2
        assert not keys & reachable(apart.ends[name])


# ---- a curious aggregator -------------------------------------------------------------------------------


def test_nothing_that_is_relayed_is_in_what_the_aggregator_reads(sealed):
    """It keeps every byte that it is ever sent, and looks for what was sealed."""
    apart = Apart(table=pooled(200), **DEEP).play()
    assert apart.session.phase == "done"
    kinds = {kind for kind, *_ in sealed}
    assert kinds == {"the number of rows", "gradients", "which rows go left"}
    read = b"".join(encode_from_party(message) for _, message in apart.sent)
    for kind, content, _ in sealed:
        assert len(content) == 8 or len(set(content)) > 3, kind
        for start in range(0, len(content) - 16, 16):
            piece = content[start : start + 16]
            assert len(set(piece)) < 3 or piece not in read
    labels = np.packbits(pooled(200).column("y").to_numpy().astype(bool)).tobytes()
    assert labels not in read


def sums_of(apart, party, find):
    """The sums of one party that the aggregator reads in its report, node by node, and the query."""
    ask = next(ask for ask in apart.heard(Ask, party) if find(ask.query))
    opener = PlainOpener(Tag(ask.turn, ask.attempt, ask.roster, b"", ask.query.segments))
    for report in apart.said(Report, party):
        if report.turn == ask.turn:
            opener.add(party, report.part, report.cells)
    return ask.query.from_cells(opener.open()), ask.query


def roots(query):
    return isinstance(query, HistogramQuery) and query.tree == 0 and query.nodes == (0,)


def of_root(apart, party):
    """The root's histogram [bins + 1, 2] of one party."""
    values, query = sums_of(apart, party, lambda query: any(map(roots, query.parts)))
    begin = 0
    for part in query.parts:
        if roots(part):
            return values[begin : begin + part.cells].reshape(-1, STATS)
        begin += part.cells
    raise AssertionError


def test_what_the_aggregator_reads_of_each_party_are_sums_by_bin():
    """That is what `plain` says: no row sets, no rows, but every sum of each party by itself, and where a bin
    has one row the gradient of that row, which is its label."""
    table = pooled(60)
    names = table.column_names
    rare = np.where(np.arange(60) == 7, 100.0, np.round(table.column("minutes").to_numpy())).astype(
        np.float32
    )
    table = table.set_column(names.index("minutes"), "minutes", pa.array(rare))
    apart = Apart(table=table, max_bin=32).play()
    layout = Layout.of(apart.session.run.state.start.cut_points)
    features, held = apart.terms.columns.features, apart.layout.held
    held["bank"] = [name for name in features if name not in {*held["telco"], *held["shop"]}]
    bins = layout.value_bins + layout.missing
    ends = np.cumsum(bins)
    totals = {}
    for party in apart.terms.parties:
        sums = of_root(apart, party)
        for feature, name in enumerate(features):
            of_feature = sums[ends[feature] - bins[feature] : ends[feature]]
            assert of_feature.any() == (name in held[party])
            if name in held[party]:
                totals[name] = of_feature.sum(axis=0).tolist()
    assert len({tuple(total) for total in totals.values()}) == 1
    minutes = features.index("minutes")
    last = of_root(apart, "telco")[ends[minutes] - 1]
    assert last[1] > 0
    assert (last[0] < 0) == (table.column("y")[7].as_py() == 1)
