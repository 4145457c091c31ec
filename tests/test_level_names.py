"""Levels that sites name together, and descriptions by site: what is told, and what attacks make of it."""

import asyncio
import itertools
import os
from typing import Any, ClassVar

import faults_apart
import numpy as np
import pyarrow as pa
import pytest
from anything import ANYTHING
from raised import raised
from sites import bundles_of, consortium, fedboost, terms

import fedboost as fb
from fedboost.boosting.programs.tasks import describe
from fedboost.boosting.queries import columns as queries
from fedboost.boosting.queries.columns import LevelsQuery, SummaryQuery, groups_of, level_in, slot_of
from fedboost.boosting.state import INITIAL_STATE
from fedboost.cli.output import print_text
from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.holders.columns import holder_for
from fedboost.holders.other_tasks import HolderArguments, LevelsHolder
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Send
from fedboost.runtime.local import simulation
from fedboost.runtime.local.simulation import play, reader_of, sites_of
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.tasks import terms_to_describe
from fedboost.views.approval import summary as summary_of
from fedboost.views.as_text import text
from fedboost.views.results import description as view

FLOOR = 10
RARE = "of one person"
NAMES = tuple(f"p{number}" for number in range(7))


def sites(parties=4, levels=30, own=40, rare=None):
    """Tables with a column `ward`: frequent levels at all sites, one that only the first site has, and one of
    a single person at a site (`rare`)."""
    draw, out = np.random.default_rng(5), {}
    for name in NAMES[:parties]:
        frequent = draw.permutation(np.arange(levels * 12) % levels)
        wards = [*(f"ward {number}" for number in frequent), *[None] * 600]
        wards += ["only there"] * own * (name == NAMES[0]) + [RARE] * (name == rare)
        age, y = draw.normal(size=len(wards)), draw.integers(0, 2, len(wards))
        out[name] = pa.table({"age": age, "ward": pa.array(wards), "y": y})
    return out


def agreed(parties=4, **settings):
    columns = {"label": "y", "numeric": ["age"], "categorical": {"ward": ["ward 0", "ward 1"]}}
    own = {"protection": "masked", "colluding": 0, "columns": columns, **settings}
    return terms_to_describe(terms(NAMES[:parties], **own), levels=["ward"])


def groups(parties=4):
    return groups_of(NAMES[:parties])


def session_of(tables, holders=(), program=describe, **settings):
    """The ended session, in which some parties have a holder of another class, or the program is another."""
    own = agreed(len(tables), **settings)
    makers = {}
    for name, table in tables.items():
        read, kind = reader_of(table, own, name), dict(holders).get(name)
        makers[name] = holder_for(read, name)
        if kind is not None:
            arguments = HolderArguments(read, name, 1, None, None, False)
            makers[name] = lambda terms, secret, kind=kind, own=arguments: kind(own, terms, secret)
    session = AggregatorSession("s", own, program, INITIAL_STATE, draw=os.urandom)
    play(session, sites_of(own, makers, {}), 0, simulation.Meter(own.parties))
    return session


def told(session):
    return session.run.outcome.summary["level_names"]["ward"]


# ---- What is named ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "protection"), [(4, "masked"), (5, "masked"), (7, "masked"), (4, "plain")]
)
def test_levels_with_enough_rows_in_both_groups_are_named(parties, protection, capsys):
    tables = sites(parties)
    known = fb.describe(agreed(parties, protection=protection), tables, min_count=FLOOR)
    by_group = [
        pa.concat_tables([tables[name] for name in group])["ward"].to_pandas().value_counts()
        for group in groups(parties)
    ]
    due = {level for level in by_group[0].index if min(each.get(level, 0) for each in by_group) >= FLOOR}
    both = by_group[0].add(by_group[1], fill_value=0)
    named = known.level_names["ward"]
    assert named.levels == {level: round(both[level], -1) for level in due}
    assert len(due) == 30
    assert named.others == 40  # those that only one site has
    assert "column ward has 28 frequent levels that the terms lack" in " ".join(known.advice)
    print_text(text(view(known)))
    assert "only there" not in capsys.readouterr().out


async def test_over_grpc_the_names_are_the_same(tmp_path):
    tables, own = sites(4), agreed(4)
    bundles = bundles_of(tmp_path / "keys", own.parties)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, table in tables.items():
            one.start_party(name, table, policy={**ANYTHING, "level_names": ["ward"]})
        known = await asyncio.to_thread(one.analyst.describe, own)
    assert known.summary == fb.describe(own, tables).summary
    assert len(known.level_names["ward"].levels) == 30


class World(faults_apart.World):
    """A session that names levels, in which connections, parties and the aggregator are lost."""

    program = staticmethod(describe)

    def choose(self, seed):
        self.aim, own, tables = 0.1, agreed(4, protection=("masked", "plain")[seed % 2]), sites(4)
        holders = {name: holder_for(reader_of(table, own, name), name) for name, table in tables.items()}
        return own, sites_of(own, holders, {})

    def check(self, session):
        pass

    def holders(self):
        return {}


@pytest.mark.parametrize("seed", range(8))
def test_the_names_are_the_same_whatever_is_lost(seed):
    world = World(seed)
    for _ in range(400):
        if not world.over():
            world.step()
    world.calm()
    if "has had enough" not in str(world.session.error):
        assert told(world.session) == told(session_of(sites(4)))
        assert world.faults


def test_names_with_any_text_are_read_and_others_are_not():
    for level in ("a", "é" * 64, "x" * 128, "0"):
        slot = np.array(slot_of(level))
        assert level_in((5 * slot).tolist()) == level
        assert level_in((2 * slot + np.array(slot_of("b"))).tolist()) in ("", level)
    assert level_in((np.array(slot_of("a")) + np.array(slot_of("b"))).tolist()) == ""
    assert [slot_of("x" * 129), slot_of("a\nb")] == [[], []]
    assert level_in([0] * queries.SLOT) == level_in([-1] * queries.SLOT) == ""


def test_groups_depend_on_the_set_of_parties_alone():
    for size in range(4, 8):
        first, second = groups_of(NAMES[:size])
        assert sorted(first + second) == [*NAMES[:size]]
        assert len(second) - len(first) in (0, 1)
        assert groups_of(NAMES[:size][::-1]) == (first, second)


# ---- A party that poisons, alone and with another ------------------------------------------------------


def adds(level, count=1000, groups=(0, 1), knows=()):
    """A holder that adds rows with a level, in its group's part with checks that hold. In the other group's
    part they hold only if that group's party `knows` its key."""

    class Poisoner(LevelsHolder):
        def answering(self, query):
            out = yield from super().answering(query)
            if not isinstance(query, LevelsQuery) or query.places:
                return out
            parts = out.reshape(2, 2, -1)
            key, factor = self.keys
            cells = queries.cells_of(key, 0, level)
            for group in groups:
                parts[group, 0, cells] += count
                if group == self._group:
                    parts[group, 1, cells] = (parts[group, 1, cells] + count * factor) % queries.PRIME
            return parts.ravel()

        def _exchanged(self):
            key, of_group = yield from super()._exchanged()
            packed = queries.packing.pack(key, of_group)
            self.keys = key, queries.check_words(packed, queries.HASHES * queries.CELLS)[0]
            return key, of_group

    return Poisoner


@pytest.mark.parametrize("poisoner", NAMES[:4])
def test_no_single_party_has_the_level_of_one_person_named(poisoner):
    """It knows the level, and adds any number of rows with it, also to its own SummaryQuery's totals."""
    for victim in set(NAMES[:4]) - {poisoner}:
        tables = sites(rare=victim)
        own = next(n for n, group in enumerate(groups()) if poisoner in group)
        session = session_of(tables, {poisoner: adds(RARE, 500, [own])})
        assert RARE not in told(session)["levels"]
        assert len(told(session)["levels"]) == 30


@pytest.mark.parametrize("protection", ["masked", "plain"])
def test_a_party_that_adds_to_the_other_groups_counts_ends_the_session_before_names_are_sent(protection):
    tables, seen = sites(rare=NAMES[1]), []

    def watched(terms, grown):
        program, total = describe(terms, grown), None
        while True:
            query = program.send(total)
            total = yield query
            seen.append(query)

    for poisoner in NAMES[:4]:
        session = session_of(tables, {poisoner: adds(RARE, 300)}, watched, protection=protection)
        assert session.phase == "failed"
        assert "changed the counts of levels" in str(session.error)
    assert not any(isinstance(query, LevelsQuery) and query.places for query in seen)  # none was opened


def test_a_party_of_each_group_together_have_it_named():
    """As documented: the floor holds without the parties of one group, not of both."""
    one, other = groups()
    tables = sites(rare=one[1])
    holders = {one[0]: adds(RARE, 20, [0]), other[0]: adds(RARE, 20, [1])}
    assert RARE in told(session_of(tables, holders))["levels"]


def test_a_party_cannot_choose_the_key_after_it_saw_the_others():
    class Late(LevelsHolder):
        def _exchanged(self):
            steps = super()._exchanged()
            step = next(steps)
            while True:
                changed = isinstance(step, Send) and step.kind == "part of the level key"
                if changed:
                    step = Send(step.kind, step.to, bytes(32), step.about)
                try:
                    step = steps.send((yield step))
                except StopIteration as done:
                    return done.value

    session = session_of(sites(), {NAMES[2]: Late})
    assert "a key that it had not committed to" in str(session.error)


def test_another_key_in_the_second_query_is_noticed():
    """A party that knows which cells are frequent could otherwise look for a key that maps a level there."""

    class Changing(LevelsHolder):
        def answering(self, query):
            self._secret = os.urandom(32)
            return (yield from super().answering(query))

    session = session_of(sites(), {groups()[0][1]: Changing})
    assert "changed the counts of levels" in str(session.error)


# ---- The aggregator, alone and with a party -------------------------------------------------------------


class Spy(LevelsHolder):
    """A party that tells the aggregator its keys."""

    told: ClassVar[dict[str, Any]] = {}

    def _exchanged(self):
        keys = yield from super()._exchanged()
        self.told.update(key=keys[0], of_group=keys[1], group=self._group)
        return keys


def lying(spy=None):
    """A program of an aggregator that claims that each cell with any row is frequent. With a spy, it makes
    the checks of the spy's group hold."""

    def program(terms, grown):
        program, total, counted = describe(terms, grown), None, np.zeros(0)
        while True:
            query = program.send(total)
            if isinstance(query, LevelsQuery) and query.places:
                counts, checks = counted.reshape(2, 2, -1).swapaxes(0, 1)
                places = np.flatnonzero(counts.sum(axis=0))
                counts, checks = counts[:, places].copy(), checks[:, places].copy()
                short = counts < terms.evaluation.min_count
                counts[short] = terms.evaluation.min_count
                if spy is not None:
                    known = queries.packing.pack(spy.told["key"], spy.told["of_group"])
                    factor, added = queries.check_words(known, queries.HASHES * queries.CELLS)
                    own = spy.told["group"]
                    checks[own] = (counts[own] * factor + added[places]) % queries.PRIME
                pair = (tuple(each.ravel().tolist()) for each in (counts, checks))
                query = LevelsQuery(1, tuple(places.tolist()), *pair)
            total = yield query
            if isinstance(query, LevelsQuery) and not query.places:
                counted = total

    return program


def test_an_aggregator_that_lies_about_counts_gets_no_names():
    session = session_of(sites(rare=NAMES[3]), program=lying())
    assert "changed the counts of levels" in str(session.error)


@pytest.mark.parametrize("spy", NAMES[:4])
def test_nor_does_it_with_a_party(spy):
    for victim in set(NAMES[:4]) - {spy}:
        session = session_of(sites(rare=victim), {spy: Spy}, lying(Spy))
        assert "changed the counts of levels" in str(session.error)


def sums_of(tables, holders=()):
    """The sums of counts of both groups, int64 [2, cells], as the aggregator sees them."""
    seen = []

    def watched(terms, grown):
        program, total = describe(terms, grown), None
        while True:
            try:
                query = program.send(total)
            except StopIteration as done:
                return done.value
            total = yield query
            if isinstance(query, LevelsQuery) and not query.places:
                seen.append(total.reshape(2, 2, -1)[:, 0])

    session_of(tables, holders, watched)
    return seen[0]


def test_who_learns_of_the_level_of_one_person():
    """The aggregator with a dictionary, without the key and, as documented, with a party."""
    tables = sites(rare=NAMES[1])
    sums = sums_of(tables, {NAMES[0]: Spy})
    group = next(n for n, names in enumerate(groups()) if NAMES[1] in names)
    dictionary = [RARE, *(f"absent {number}" for number in range(500))]

    def found(key):
        return [level for level in dictionary if sums[group][queries.cells_of(key, 0, level)].min() > 0]

    assert found(os.urandom(32)) == []  # a guess of the key finds none, or any, by chance
    assert found(Spy.told["key"]) == [RARE]  # exact counts over a group, of at least two other parties


# ---- Terms, policy, approval, queries -------------------------------------------------------------------


def test_terms_that_cannot_name_levels_are_refused():
    columns = {"label": "y", "numeric": ["age"], "categorical": {"ward": ["a"]}}
    base = {"columns": columns, "protection": "masked", "program": "describe", "level_names": ["ward"]}
    for settings, parties in (
        ({}, 5),  # one party may collude, so groups need three
        ({"colluding": 0}, 3),
        ({"level_names": ["age"]}, 6),
        ({"level_names": ["ward", "ward"]}, 6),
        ({"columns": {**columns, "absent": {NAMES[0]: ["ward"]}}}, 6),
        ({"program": "boosting"}, 6),
        ({"protection": "paillier", "keyholder": "p0"}, 6),
        ({"on_loss": "shrink"}, 6),
    ):
        with raised(ConfigError, "settings-invalid"):
            terms(NAMES[:parties], **{**base, **settings})
    assert terms(NAMES[:6], **base).evaluation.level_names == ("ward",)
    assert terms(NAMES[:4], **{**base, "colluding": 0}).max_turns == 8
    with raised(ConfigError, "settings-invalid"):
        fb.describe(terms(**base), sites(3))


def test_a_site_allows_names_of_single_columns_and_its_approval_says_so():
    opened = {"parties": "any", "analysts": "any", "columns": "any", "colluding": 0}
    own = agreed(4)
    (breach,) = Policy(**opened).breaches(own)
    assert (breach.key, breach.allow) == ("level_names", ("ward",))
    assert not [*Policy(**opened, level_names=["ward"]).breaches(own)]
    assert "NAMES OF LEVELS of ward LEAVE THIS SITE" in " ".join(summary_of(own).split())
    by_site = terms_to_describe(terms(NAMES[:3], protection="masked"), by_site=True)
    (breach,) = Policy(**opened).breaches(by_site)
    assert breach.key == "party_metrics"
    assert "FOR EACH SITE SEPARATELY" in summary_of(by_site)


def test_queries_for_levels_that_the_terms_do_not_allow_are_refused():
    own = agreed(4)
    LevelsQuery(1).check(own)
    good = (3, 7), (10, 10, 10, 10), (1, 2, 3, 4)
    LevelsQuery(1, *good).check(own)
    for query in (
        LevelsQuery(2),
        LevelsQuery(1, (3,), (10, 9), (1, 2)),
        LevelsQuery(1, (7, 3), *good[1:]),
        LevelsQuery(1, (3, 3), *good[1:]),
        LevelsQuery(1, (3, queries.HASHES * queries.CELLS), *good[1:]),
        LevelsQuery(1, (3, 7), good[1], (1, 2, 3)),
        LevelsQuery(1, (), *good[1:]),
    ):
        with raised(Refused, "query-levels"):
            query.check(own)
    with raised(Refused, "query-levels"):
        LevelsQuery(1).check(terms_to_describe(terms(NAMES[:4])))
    with raised(Refused, "query-task"):
        LevelsQuery(1).check(terms(NAMES[:4]))


def test_the_command_writes_terms_and_shows_names(tmp_path):
    file, out = tmp_path / "terms.toml", tmp_path / "describe.toml"
    file.write_text(terms_to_toml(terms(NAMES[:4], protection="masked", colluding=0)))
    fedboost("describe", file, "--levels", "ward", "--by-site", "--save-terms", out)
    saved = out.read_text()
    assert 'level_names = ["ward"]' in saved
    assert "party_metrics = true" in saved


# ---- By site ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_it_shows_which_site_lacks_a_column(protection, capsys):
    tables = sites(3)
    tables["p1"] = tables["p1"].set_column(0, "age", pa.nulls(tables["p1"].num_rows, pa.float64()))
    columns = {"label": "y", "numeric": ["age"], "categorical": {"ward": ["ward 0", "only there"]}}
    own = terms(NAMES[:3], protection=protection, columns=columns)
    known = fb.describe(own, tables, by_site=True, min_count=1)
    for name, table in tables.items():
        wards = table["ward"].to_pandas()
        missing = {
            "age": table["age"].null_count,
            "ward": (~wards.isin(columns["categorical"]["ward"])).sum(),
        }
        assert known.sites[name].model_dump() == {"rows": table.num_rows, "missing": missing}
    rounded = fb.describe(own, tables, by_site=True)
    assert all(n % 10 == 0 for site in rounded.sites.values() for n in (site.rows, *site.missing.values()))
    assert "column age has hardly any declared values at p1" in " ".join(rounded.advice)
    print_text(text(view(rounded)))
    assert "100.0%" in capsys.readouterr().out
    without = fb.describe(own, tables)
    assert "sites" not in without.summary
    assert {**rounded.summary, "sites": None} == {**without.summary, "sites": None}


def test_sites_whose_counts_contradict_the_sum_end_the_session():
    program = describe(terms_to_describe(terms(NAMES[:3]), by_site=True), [])
    query = next(program)
    counts = np.zeros(query.cells, np.int64)
    counts[:1], counts[3], counts[8] = 50, 50, 50
    assert (query.cells, query.sites) == (8 + 2 + 3 * 4, NAMES[:3]) or query.cells > 0
    with raised(PeerError, "sums-inconsistent"):
        program.send(counts)


def test_a_query_by_site_needs_terms_that_ask_for_it():
    own = terms_to_describe(terms(NAMES[:3]))
    asked = SummaryQuery.of(terms_to_describe(terms(NAMES[:3]), by_site=True))
    assert asked.name == "SummaryQuery by party"
    assert asked.digest != SummaryQuery.of(own).digest
    with raised(Refused, "query-columns"):
        asked.check(own)
    with raised(SessionFailed, "session-failed"):
        fb.describe(agreed(4), sites(4), min_count=10_000, by_site=True)
    assert len({*itertools.chain(*groups(7))}) == 7


# ---- The figures of docs/decisions/0062-union-of-levels.md: python tests/test_level_names.py ------------


def named_by_chance(frequent, keys=25, rare=20_000):
    """The share of rare levels whose cells are all shared with frequent ones, as computed and as measured."""
    hits = 0
    for _ in range(keys):
        key, full = os.urandom(32), np.zeros(queries.HASHES * queries.CELLS, np.bool_)
        for number in range(frequent):
            full[queries.cells_of(key, 0, f"frequent {number}")] = True
        hits += sum(full[queries.cells_of(key, 0, f"rare {number}")].all() for number in range(rare))
    return (frequent / queries.CELLS) ** queries.HASHES, hits / (keys * rare)


def poisoned():
    """Of all pairs of a party that poisons its own group's counts and a victim: how often the level of one
    person is named; and of pairs of parties, by the number of groups that they are in."""
    alone = [
        RARE in told(session_of(sites(rare=victim), {one: adds(RARE, 500, [of_group(one)])}))["levels"]
        for one, victim in itertools.permutations(NAMES[:4], 2)
    ]
    pairs = {1: [], 2: []}
    for one, other in itertools.combinations(NAMES[:4], 2):
        victim = next(name for name in NAMES[:4] if name not in (one, other))
        holders = {name: adds(RARE, 500, [of_group(name)]) for name in (one, other)}
        named = RARE in told(session_of(sites(rare=victim), holders))["levels"]
        pairs[len({of_group(one), of_group(other)})].append(named)
    return alone, pairs


def of_group(name, parties=4):
    return next(number for number, group in enumerate(groups(parties)) if name in group)


def seen_by_guessing(keys=400, absent=250):
    """The share of guessed keys under which the rare level seems to be there, and that of absent levels."""
    tables = sites(rare=NAMES[1])
    sums = sums_of(tables, {NAMES[0]: Spy})[of_group(NAMES[1])]

    def seems(key, level):
        return sums[queries.cells_of(key, 0, level)].min() > 0

    guesses = [os.urandom(32) for _ in range(keys)]
    rare = np.mean([seems(key, RARE) for key in guesses])
    others = np.mean([[seems(key, f"absent {n}") for n in range(absent)] for key in guesses])
    known = [
        level for level in (RARE, *(f"absent {n}" for n in range(5000))) if seems(Spy.told["key"], level)
    ]
    return rare, others, known


def recall(parties, rows=20_000, levels=211):
    """Of a skewed column at sites of unequal size: levels with at least 2 * FLOOR rows, and those named."""
    draw = np.random.default_rng(8)
    share = 1.0 / np.arange(1, levels + 1)
    wards = np.array([f"d{number}" for number in draw.choice(levels, rows, p=share / share.sum())])
    size = np.arange(1, parties + 1)
    owner = draw.choice(parties, rows, p=size / size.sum())
    tables = {
        NAMES[place]: pa.table(
            {"age": draw.normal(size=n), "ward": wards[owner == place], "y": np.arange(n) % 2}
        )
        for place, n in enumerate(np.bincount(owner, minlength=parties).tolist())
    }
    named = told(session_of(tables, program=describe))["levels"]
    levels, counts = np.unique(wards, return_counts=True)
    frequent = {*levels[counts >= 2 * FLOOR].tolist()}
    return len(frequent), len(frequent & named.keys()), sum(counts[np.isin(levels, [*named])]) / rows


if __name__ == "__main__":
    for frequent in (200, 1000, 3000):
        print(f"{frequent} frequent levels: a rare one is named by chance", *named_by_chance(frequent))
    alone, pairs = poisoned()
    print("poisoned by one party:", sum(alone), "of", len(alone))
    print(
        "by two of one group:",
        sum(pairs[1]),
        "of",
        len(pairs[1]),
        "and of both:",
        sum(pairs[2]),
        len(pairs[2]),
    )
    print("by guessed keys: rare, absent; known to the aggregator with a party:", *seen_by_guessing())
    for parties in (4, 5, 7):
        print(f"{parties} sites: frequent levels, named, share of rows", *recall(parties))
