"""Whoever is killed, stopped or full, nothing of a training is lost."""

import asyncio
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from anything import ANYTHING
from crashes import bare, crashed, stopped
from pyarrow import parquet
from raised import raised
from sites import (
    PATIENCE,
    bundles_of,
    consortium,
    fedboost,
    in_time,
    rows,
    shared_out,
    terms,
    until,
    written,
)

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.errors import ConfigError, Refused
from fedboost.gbdt.tree import Tree
from fedboost.privacy import identity as issue_identity
from fedboost.privacy.identity import new_root, to_pem
from fedboost.protocol.run import AttemptStarted, Begun, Opened, TreeGrown
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.aggregator.sessions import SUFFIX, TURN_SECONDS, Folder
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.cluster import ANALYST, LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model, text_of
from fedboost.runtime.net.keys import read_bundle, write_bundle
from fedboost.runtime.tasks import terms_to_toml

THREE = ("north", "south", "east")
ROUNDS = 30


def undisturbed(agreement, tables):
    """The model file that the rows give, without signatures."""
    return bare(simulate(agreement, tables).model)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protection", [pytest.param("plain", marks=pytest.mark.long), "masked"])
def test_killed_processes_that_come_back_change_nothing(tmp_path, protection):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS, protection=protection)
    model, kills, _ = crashed(tmp_path, written(tmp_path, tables), agreement, 5, 1, ANYTHING)
    assert kills == 5
    assert bare(model) == undisturbed(agreement, tables)
    assert set(model.attestations) == set(THREE)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_party_that_sleeps_beyond_the_deadline_changes_nothing(tmp_path):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS, protection="masked", turn_timeout=1.0)
    model, _ = stopped(tmp_path, written(tmp_path, tables), agreement, 3, ANYTHING)
    assert bare(model) == undisturbed(agreement, tables)


@pytest.mark.slow
async def test_a_full_disk_stops_the_aggregator_and_loses_nothing(tmp_path, monkeypatch):
    tables = shared_out(2)
    agreement = terms(["north", "south"], rounds=5)
    write, written_so_far = os.write, []

    def filling_up(file, data):
        if os.readlink(f"/proc/self/fd/{file}").endswith(SUFFIX):
            written_so_far.append(len(data))
            if len(written_so_far) == 10:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", filling_up)
    async with consortium(tmp_path / "c", tables, state=tmp_path / "state") as one:
        training = asyncio.create_task(one.train(agreement))
        with pytest.raises(ConfigError, match=r"No space left on device; fix this and restart"):
            await one.server.serve()
        await one.server.stop()
        config = AggregatorConfig(listen=one.address, state=tmp_path / "state")
        one.server = AggregatorServer(config, one.log, None)
        await one.server.start()
        model = (await training).model
        await until(lambda: not list((tmp_path / "state").glob("*.journal")))
    assert bare(model) == undisturbed(agreement, tables)
    assert len(one.log.named("session goes on")) == 1
    assert [node["reason"] for node in one.log.named("cannot go on")]


async def test_a_state_folder_that_is_gone_costs_a_session_and_not_the_aggregator(tmp_path):
    tables, state = shared_out(2), tmp_path / "state"
    agreement = terms(["north", "south"])
    async with consortium(tmp_path / "c", tables, state=state) as one:
        shutil.rmtree(state)
        with raised(Refused, "aggregator-cannot-write"):
            await one.train(agreement)
        state.mkdir()
        model, log = (await one.train(agreement)).model, one.log
    assert bare(model) == undisturbed(agreement, tables)
    assert "No such file or directory" in log.named("cannot begin a session")[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protection", "continued"),
    [("masked", False), *(pytest.param("plain", c, marks=pytest.mark.long) for c in (False, True))],
)
async def test_an_aggregator_that_is_told_to_stop_finishes_the_turn_alone(tmp_path, protection, continued):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS, protection=protection)
    if continued:
        agreement = agreement.changed(xgb_model=text_of(simulate(agreement, tables).model))
    bundles = bundles_of(tmp_path / "keys", THREE)
    async with consortium(tmp_path / "c", tables, (), bundles, state=tmp_path / "state") as one:
        training = asyncio.create_task(one.train(agreement))
        await until(lambda: one.server.sessions.active and one.server.sessions.active.session.turn > 20)
        before = one.server.sessions.active.session.turn
        began = time.monotonic()
        await one.server.stop()
        assert time.monotonic() - began < TURN_SECONDS / 4
        config = AggregatorConfig(listen=one.address, state=tmp_path / "state")
        one.server = AggregatorServer(config, one.log, bundles["aggregator"])
        await one.server.start()
        assert one.server.sessions.active.session.turn <= before + 1
        training = await training
    assert bare(training.model) == undisturbed(agreement, tables)
    # What the analyst is told in all is what it was told round by round, and what the end took.
    rounds, total = sum(row["bytes"] for row in training.history), sum(map(sum, training.traffic.values()))
    assert not training.uncounted
    assert rounds <= total < rounds + 20_000


@pytest.mark.slow
async def test_an_analyst_who_comes_after_a_restart_is_told_what_is_not_counted(tmp_path):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreement))
    async with consortium(tmp_path / "c", tables, state=tmp_path / "state") as one:

        def see_a_round():
            rows = iter(one.analyst.train(agreement, PATIENCE))
            next(rows)
            rows.close()

        await asyncio.to_thread(see_a_round)
        await one.server.stop()
        config = AggregatorConfig(listen=one.address, state=tmp_path / "state")
        one.server = AggregatorServer(config, one.log, None)
        await one.server.start()
        given = "--aggregator", one.address, "--insecure-loopback", "--out", tmp_path / "model.json"
        end = await asyncio.to_thread(fedboost, "train", tmp_path / "terms.toml", *given)
    assert end.code == 0
    assert re.search(r"^traffic .* kB  \(since the aggregator was restarted\)$", end.out, re.MULTILINE)
    assert "in all" not in end.out


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_who_stops_listening_can_end_and_come_back(tmp_path):
    tables = shared_out(3)
    files = written(tmp_path, tables)
    agreement = terms(THREE, rounds=ROUNDS)
    (tmp_path / "terms.json").write_text(agreement.canonical())
    script = (
        "import sys; from pathlib import Path; import fedboost as fb\n"
        "terms = fb.Terms.from_canonical(Path(sys.argv[2]).read_text())\n"
        "training = fb.connect(sys.argv[1], sys.argv[3]).train(terms)\n"
        "print(next(iter(training))['round'])"
    )
    with LocalCluster(tmp_path, files, policy=ANYTHING) as one:
        words = [sys.executable, "-c", script, one.address, tmp_path / "terms.json", one.keys / ANALYST]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
        assert bare(one.analyst.train(agreement).model) == undisturbed(agreement, tables)


def test_a_journal_that_was_changed_is_refused_when_the_aggregator_starts(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "session-1.journal").write_bytes(b"something else")

    async def scenario():
        async with consortium(tmp_path / "c", {}, state=folder):
            pass

    with raised(ConfigError, "journal-version"):
        in_time(scenario())


AGREED = terms(["north", "south", "east"], on_loss="shrink")
FIRST = Begun("s", AGREED, "")
GATHERED = AttemptStarted(1, AGREED.parties)
COUNTS = RowsQuery().cells


def journals(folder, *sessions):
    """The journals of these sessions, in a folder of their own; its path."""
    held = Folder(folder)
    for number, records in enumerate(sessions):
        one = held.begin(f"session-{number}")
        for record in records:
            one.append(record)
        one.close()
    held.close()
    return folder


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([GATHERED], "the first record does not contain the terms"),
        ([Begun("s", terms(), "")], "the terms do not name any parties"),
        (
            [Begun("s", AGREED.changed(program="mine:too"), "")],
            "program 'mine:too' is not offered by this aggregator",
        ),
        ([FIRST, FIRST], "the journal records the start of the session twice"),
        ([FIRST, GATHERED, GATHERED], "attempt 1 with 3 parties is not possible"),
        (
            [FIRST, GATHERED, AttemptStarted(2, ("north", "south"))],
            "attempt 2 with 2 parties is not possible",
        ),
        (
            [FIRST, GATHERED, TreeGrown(1, Tree.of_columns([]), (), [[], 1, None, None])],
            "the tree recorded in turn 1 does not fit the session: no tree ends in this turn",
        ),
        ([FIRST, GATHERED, Opened(1, b"x" * 32, np.ones(COUNTS, np.int64))], "does not ask for"),
        ([FIRST, GATHERED, Opened(1, RowsQuery().digest, np.ones(7, np.int64))], "does not fit its query"),
        (
            [
                FIRST,
                GATHERED,
                Opened(1, RowsQuery().digest, np.zeros(COUNTS, np.int64)),
                AttemptStarted(2, THREE),
            ],
            "impossible number of rows (0 in total)",
        ),
    ],
)
def test_a_journal_that_cannot_be_is_refused_by_name_when_the_aggregator_starts(tmp_path, records, said):
    folder = journals(tmp_path / "state", records)
    kept = (folder / "session-0.journal").read_bytes()

    async def scenario():
        async with consortium(tmp_path / "c", {}, state=folder):
            pass

    with pytest.raises(ConfigError) as caught:
        in_time(scenario())
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{folder / 'session-0.journal'}: ")
    assert str(caught.value).endswith("move the file aside to continue without it")
    assert "\n" not in str(caught.value)
    assert (folder / "session-0.journal").read_bytes() == kept


def test_a_program_that_breaks_over_the_sums_of_a_journal_is_refused_by_name(tmp_path):
    begun = Begun("s", AGREED.changed(program="sites:fails_later"), "")
    sums = Opened(1, RowsQuery().digest, np.ones(COUNTS, np.int64))
    folder = journals(tmp_path / "state", [begun, GATHERED, sums])

    async def scenario():
        async with consortium(tmp_path / "c", {}, ["sites:fails_later"], state=folder):
            pass

    with raised(ConfigError, "journal-program-failed"):
        in_time(scenario())


async def test_an_analyst_stops_a_session_that_waits_for_another(tmp_path):
    """Both are of an earlier process. The other one goes on, and no party hears of it."""
    later = AGREED.changed(rounds=7)
    begun = [GATHERED, Opened(1, RowsQuery().digest, np.ones(COUNTS, np.int64))]
    folder = journals(tmp_path / "state", [FIRST, *begun], [Begun("t", later, ""), *begun])
    async with consortium(tmp_path / "c", {}, state=folder) as one:
        await asyncio.to_thread(one.analyst.train(later).stop)
        left = [path.name for path in folder.glob("*.journal")]
        await asyncio.to_thread(one.analyst.train(AGREED).stop)
        found = left, [path.name for path in folder.glob("*.journal")]
    assert found == (["session-0.journal"], [])


async def test_a_session_of_which_nothing_was_opened_is_begun_anew(tmp_path):
    """A party may not have heard of it yet, and takes no later attempt of what it does not know."""
    folder = journals(tmp_path / "state", [FIRST, GATHERED])
    async with consortium(tmp_path / "c", {}, state=folder) as one:
        found = one.log.named("session dropped: no sum was opened")
    assert [line["session"] for line in found] == ["s"]
    assert not list(folder.glob("*.journal"))


def short_lived(folder, seconds):
    """Bundles by name, of which south's ends so soon; and a function that renews it."""
    folder.mkdir()
    now = datetime.now(UTC)
    root_key, root = new_root("test", now - timedelta(days=1), 9)

    def issue(name, role, moment):
        write_bundle(
            folder / name, *issue_identity.issue(root_key, root, name, role, moment, 1), to_pem(root)
        )
        return read_bundle(folder / name, role)

    ending = now - timedelta(days=1) + timedelta(seconds=seconds)
    bundles = {name: issue(name, "party", ending if name == "south" else now) for name in THREE}
    bundles |= {role: issue(role, role, now) for role in ("aggregator", "analyst")}

    def renew():
        (folder / "south").rename(folder / "south-old")
        issue("south", "party", datetime.now(UTC))

    return bundles, renew


@pytest.mark.slow
@pytest.mark.parametrize("renewed_in_time", [True, False])
async def test_a_certificate_that_ends_in_a_session_is_renewed_and_nothing_is_lost(tmp_path, renewed_in_time):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=5, protection="masked")
    bundles, renew = short_lived(tmp_path / "keys", 4)
    async with consortium(tmp_path / "c", tables, (), bundles) as one:
        await until(lambda: len(one.log.named("at hand")) == 3)
        if renewed_in_time:
            renew()
        await asyncio.sleep(max(0.0, (bundles["south"].ends - datetime.now(UTC)).total_seconds() + 0.1))
        training = asyncio.create_task(one.train(agreement))
        if not renewed_in_time:
            with pytest.raises(
                ConfigError, match=r"south/certificate.pem expired on .* to issue a new bundle"
            ):
                await one.tasks["south"]
            renew()
            one.bundles["south"] = read_bundle(tmp_path / "keys" / "south", "party")
            one.start_party("south", tables["south"])
        model, log = (await training).model, one.log
    assert bare(model) == undisturbed(agreement, tables)
    assert set(model.attestations) == set(THREE)
    assert len(log.named("certificate expired")) == 1


def test_a_full_disk_at_the_analyst_does_not_cost_the_model(tmp_path, monkeypatch):
    spare = tmp_path / "spare"
    spare.mkdir()
    parquet.write_table(rows(), tmp_path / "all.parquet")
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms()))
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    replace = os.replace

    def full(source, target):
        if Path(target).parent == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    out = tmp_path / "model.json"
    done = fedboost("simulate", tmp_path / "terms.toml", "--data", tmp_path / "all.parquet", "--out", out)
    (saved,) = spare.glob("*/model.json")
    assert done.code == 2
    assert (
        done.err
        == f"fedboost: {out}: cannot write: No space left on device; the model was saved to {saved} instead\n"
    )
    assert len(Model.load(saved).booster.trees) == 3
