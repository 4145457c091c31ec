"""`fedboost audit`: what left the site, in plain words."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from typing import get_args

import pytest
from audit_logs import PAIR, PLACE, RELEASE, AuditLog, change_terms, written
from inprocess import session_of, sites_of
from raised import raised
from refusals import refusal
from sites import fedboost, rows, shared_out, terms

import fedboost as fb
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.columns import SUMMARY_BY_PARTY
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY
from fedboost.boosting.queries.trees import BY_PARTY
from fedboost.cli import site as audit
from fedboost.errors import ConfigError
from fedboost.protocol.contracts import AND
from fedboost.protocol.site import Relayed
from fedboost.results.audit import UNASKED
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.store import make_file
from fedboost.runtime.tasks import drift_terms, evaluation_terms, terms_to_tune
from fedboost.terms.tasks import terms_to_describe
from fedboost.views.approval import QUERIES
from tests.helpers.columns_apart import LAYOUTS, terms_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.audit.jsonl"


def test_the_audit_tells_what_left_in_plain_words(path, capsys):
    with AuditLog(path) as log:
        log.admitted("one", terms(PAIR))
        for turn in (1, 2):
            log.record(dataclasses.replace(RELEASE, session="one", turn=turn))
        log.record(
            dataclasses.replace(RELEASE, session="one", turn=3, what="HistogramQuery", roster=PAIR[:1])
        )
        log.ended("one", "")
        log.ended("two", "site north refuses: its policy has max_rounds = 50, and more was asked for")
        log.admitted("three", terms(["north", "south", "east"], protection="masked"))
        log.record(dataclasses.replace(RELEASE, session="three", protection="masked"))
        log.ended("three", "party east was lost")
        log.admitted("one", terms(PAIR))
    audit.audit(path, json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[1:])) < 80
    head, *sections = re.split(r"\n\n(?=Warnings|Sessions|Session |The end)", out)
    warnings, table, first, second, third, again, foot = sections
    assert head.startswith(f"{path}: unbroken, 10 entries\n\n3 WARNINGS: 3 of possible abuse.\n")
    assert " ".join(head.split()).endswith(
        "No entry within it was changed or removed; only --expect shows whether its end was cut off or "
        "rewritten."
    )
    assert "\n! 1. ABUSE? Session one: the site took part in sums over fewer or different\n" in warnings
    assert "\nABUSE?       this never happens in a session that keeps to its terms" in warnings
    assert (
        "2. ABUSE? Session one: row count; label and weight magnitudes (2 times, but the terms allow only "
        in (" ".join(warnings.split()))
    )
    assert "session three had" not in warnings.lower()  # plain hides nothing
    assert {name: verdict for name, *_, verdict in rows_of(table)} == {
        "one (1 of 2)": "warnings 1, 2",
        "two": "nothing sent",
        "three": "warning 3",
        "one (2 of 2)": "warnings 1, 2",
    }
    assert first.startswith("Session one (1 of 2): see warnings 1 and 2\nverdict      warnings 1, 2\n")
    assert again.startswith("Session one (2 of 2): see warnings 1 and 2\nverdict      warnings 1, 2\n")
    text, histograms = " ".join(first.split()), terms(PAIR).trees.rounds * terms(PAIR).trees.max_depth
    assert terms(PAIR).digest in text
    assert "with north, south" in text
    assert "4: y, age, dose, ward" in text
    assert "plain: the aggregator could see the numbers of each party" in text
    assert "row count; label and weight magnitudes 2 1 770 6.2 kB" in text
    assert f"sums over groups of rows, by interval 1 {histograms} 385 3.1 kB" in text
    assert "in all 3 1155 9.2 kB" in text
    assert "over 1 of 2 parties: north" in text
    assert "ended with a model, according to the aggregator" in text
    assert "max_rounds = 50" in second
    assert second.endswith("sent         nothing")
    assert "masked: the aggregator could see sums over the parties, never" in third
    assert "\nended        without a model: party east was lost\n" in third
    assert "sent         nothing" in again
    assert "no end is recorded" in again
    assert read_log(path)[-1].hash in foot


def rows_of(text):
    """The rows of the table of sessions."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"  20\d\d-\S+ \d\d:\d\d  ", line)]
    return [re.split(r" {2,}", line) for line in lines]


def test_a_session_is_listed_answer_by_answer(path):
    with AuditLog(path) as log:
        for name in ("one", "two"):
            log.admitted(name, terms(PAIR), "anna", name * 9)
            log.record(dataclasses.replace(RELEASE, session=name, **PLACE))
            log.record(
                dataclasses.replace(RELEASE, session=name, turn=7, what="help to open the sum", cells=0)
            )
            log.ended(name, "")
    end = fedboost("audit", path, "--session", "two")
    assert end.code == 0
    assert "Session two" in end.out
    assert "Session one" not in end.out
    assert "\nsigned by    anna, the analyst" in end.out
    assert "2 sessions in this log used these terms" in fedboost("audit", path).out
    lines = end.out.splitlines()
    assert max(map(len, lines[1:])) < 80
    rows = [line.split() for line in lines if re.match(r" +\d+ +\d+  ", line)]
    row, help = (line for line in rows if len(line) > 5)
    assert (row[:4], row[-2:]) == (["1", "1", "row", "count;"], ["abababa", "cdcdcdc"])
    assert (help[:6], help[-2:]) == (["7", "1", "help", "with", "revealing", "a"], ["-", "-"])
    assert "\nhelp with revealing a sum: keys, no data  " in end.out
    assert "RowsQuery" not in end.out
    events = [
        json.loads(line) for line in fedboost("audit", path, "--session", "two", "--json").out.splitlines()
    ]
    assert [event["event"] for event in events] == ["session", "released", "released", "verified"]
    assert events[1]["question"] == "ab" * 32
    for arguments in ((), ("--json",)):
        assert (
            refusal("audit", path, "--session", "three", *arguments)
            == f"fedboost: {path} has no session 'three'; its sessions: one, two\n"
        )


def test_the_beginning_of_a_name_is_enough_where_no_other_session_has_it(path):
    names = ["session-0123456789abcdef-and-more", "session-0123456789abcdef-and-others", "other"]
    with AuditLog(path) as log:
        for name in names * 2:
            log.admitted(name, terms(PAIR))
            log.ended(name, "")
    out = fedboost("audit", path).out
    (cut,) = {name.split()[0] for name, *_ in rows_of(out) if name.startswith("session-")}
    assert cut.endswith("…")
    line = fedboost("audit", path, "--session", cut).err
    assert f"names of 2 sessions start with '{cut[:-1]}': {names[0]}, {names[1]}; specify more of the" in line
    for given, name in (("ot", "other"), (names[0][:-2], names[0]), (names[1][:-3] + "…", names[1])):
        end = fedboost("audit", path, "--session", given)
        assert (end.code, f"Session {name} " in end.out) == (0, True)
    assert fedboost("audit", path, "--session", "").code == 2


def test_many_sessions_have_a_line_each(path):
    with AuditLog(path) as log:
        for number in range(20):
            session = f"session-{number:08x}" if number else "a name of a session that is too long for it"
            log.admitted(session, terms(PAIR, rounds=2), attempt=1 + (number == 4))
            log.record(dataclasses.replace(RELEASE, session=session, attempt=1 + (number == 4)))
            if number != 3:
                log.ended(session, "party east was lost" if number == 2 else "")
        log.ended("session-refused", "site north refuses")
    out = fedboost("audit", path).out
    lines = out.splitlines()
    assert max(map(len, lines[1:])) < 80
    assert len(lines) <= 60
    ends = {name: " ".join(rest) for name, _, *rest in rows_of(out) if name.startswith("session-")}
    assert len(ends) == 20
    assert ends["session-00000001"] == "1 model as agreed"
    assert ends["session-00000002"].startswith("1 no model: party")
    assert "was lost" in out
    assert ends["session-00000003"] == "1 open as agreed"
    assert ends["session-refused"].startswith("0 refused")
    assert ends["session-refused"].endswith("nothing sent")
    assert [name for name, line in ends.items() if "warning" in line] == ["session-00000004"]
    assert ends["session-00000004"].endswith(" warning 1")
    assert "1. CHECK Session session-00000004 begins in this log with attempt 2." in " ".join(out.split())
    assert "--session NAME" in out


@pytest.mark.parametrize("program", ["train", "describe", "tune", "evaluate", "drift"])
def test_the_end_of_any_session_stands_apart_from_the_verdict(path, program):
    with AuditLog(path) as log:
        for name, reason in (("one", ""), ("two", "party east was lost")):
            log.admitted(name, every_task()[program])
            log.record(dataclasses.replace(RELEASE, session=name))
            log.ended(name, reason)
    out = fedboost("audit", path).out
    made = {"train": "model", "drift": "comparison", "describe": "description", "tune": "result"}
    ended = made.get(program, "evaluation")
    assert max(map(len, out.splitlines()[1:])) < 80
    rows = [(name, end) for name, _, _, end, verdict in rows_of(out) if verdict]
    assert rows == [("two", f"no {ended}"), ("one", ended)]


@functools.cache
def every_task():
    """Terms of a session of each task."""
    parties = shared_out(2)
    model = fb.simulate(terms(reference=True), parties).model
    training = terms(PAIR)
    return {
        "train": training,
        "describe": terms_to_describe(training),
        "tune": terms_to_tune(training, trials=2),
        "evaluate": evaluation_terms(model, training),
        "drift": drift_terms(model, training)[0],
    }


def test_an_answer_that_is_sent_again_is_marked(path):
    with AuditLog(path) as log:
        for attempt in (1, 2):
            log.admitted("one", terms(PAIR), attempt=attempt)
            log.record(dataclasses.replace(RELEASE, session="one", attempt=attempt, **PLACE))
        other = {**PLACE, "roster": PAIR[:1], "attempt": 3}
        log.record(dataclasses.replace(RELEASE, session="one", **other))
    lines = fedboost("audit", path, "--session", "one").out.splitlines()
    marks = [line.partition("cdcdcdc")[2].strip() for line in lines if "abababa   cdcdcdc" in line]
    assert marks == ["", "sent again", "sent again"]
    text = " ".join(" ".join(lines).split())
    assert "2 of 3 answers repeated an earlier one, 1 of them for a sum over different parties" in text
    assert "the same answer was sent again, which reveals nothing new about rows" in text


def test_a_refused_session_has_no_table_of_answers(path):
    with AuditLog(path) as log:
        log.ended("one", "site north refuses")
    out = fedboost("audit", path, "--session", "one").out
    assert "No warnings: no answers have left this site.\n" in out
    assert "\nsent         nothing\n" in out
    assert "turn" not in out


def test_a_refused_session_names_its_analyst_and_an_admitted_one_all_columns(path):
    columns = [f"a measurement with a long name, number {i}" for i in range(20)]
    wide = terms(PAIR, columns={"label": "y", "numeric": columns})
    with AuditLog(path) as log:
        log.ended("session-no", "site north refuses", analyst="anna")
        log.admitted("session-yes", wide, "marie")
    end = fedboost("audit", path)
    refused, admitted = end.out.split("\nSession session-yes")
    assert "\nsigned by    anna, the analyst\nrefused      site north refuses\n" in refused
    text = " ".join(admitted.split())
    assert not [name for name in columns if f'"{name}"' not in text]
    sessions = map(json.loads, fedboost("audit", path, "--json").out.splitlines())
    assert [s["analyst"] for s in sessions if s.get("event") == "session"] == ["anna", "marie"]


def test_a_log_that_knows_its_party_says_whose_it_is(path):
    with AuditLog(path) as log:
        log.admitted("one", terms(PAIR))
    assert "The log of party" not in fedboost("audit", path).out
    with AuditLog(path) as log:
        log.admitted("two", terms(PAIR), party="north")
    assert "\nThe log of party north. No entry within it was changed" in fedboost("audit", path).out


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--json",), 0), (("--strict",), 1)])
def test_a_reader_that_goes_away_changes_no_exit_code(arguments, code, path):
    with AuditLog(path) as log:
        log.admitted("one", terms(PAIR), attempt=2)
        log.record(RELEASE)
        log.record(dataclasses.replace(RELEASE, session="one", attempt=2))
    assert without_a_reader("audit", path, *arguments) == (code, b"")


def test_other_commands_end_as_by_the_signal_when_their_reader_goes_away():
    assert without_a_reader("--version") == (141, b"")


def without_a_reader(*arguments):
    """Run the command with nobody at the other end of its output: its exit code, and standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "fedboost", *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": writing, "stderr": subprocess.PIPE}
    try:
        end = subprocess.run(command, env=environment, **pipes)
    finally:
        os.close(writing)
    return end.returncode, end.stderr


def test_an_empty_log_says_so_and_none_is_an_error(path, capsys):
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        audit.audit(path, json=False)
    make_file(path, "rows")
    audit.audit(path, json=False)
    assert capsys.readouterr().out == f"{path}\n\nThe log is empty: nothing has left this site.\n"


def test_nothing_is_told_of_a_log_with_a_broken_chain(path, capsys):
    file = path.with_suffix(".export")
    file.write_bytes(b"".join(written(path)[1:]))
    with raised(ConfigError, "log-gap"):
        audit.audit(file, json=False)
    assert capsys.readouterr().out == ""


def test_names_from_outside_cannot_move_the_cursor(path, capsys):
    nasty = "a\x1b[2J\r\n\u202eb"
    with AuditLog(path) as log:
        columns = {"label": "y\u202e", "numeric": ["x\u2028"]}
        log.admitted(nasty, terms(["north", "south"], columns=columns))
        log.record(dataclasses.replace(RELEASE, session=nasty, what=nasty, protection=nasty, roster=(nasty,)))
        log.ended(nasty, f"{nasty} \udcff")
    audit.audit(path, json=False)
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_all_that_leaves_in_a_masked_training_is_told_in_words(path, capsys):
    agreement = terms(["north", "south", "east"], protection="masked")
    shards = {name: to_shard(rows(), agreement, name) for name in agreement.parties}
    sites, releases = sites_of(agreement, shards), []
    with AuditLog(path) as log:
        sites["north"] = dataclasses.replace(
            sites["north"],
            taken=lambda offer: log.admitted("s", offer.terms),
            record=lambda one: (log.record(one), releases.append(one)),
        )
        assert session_of(agreement, sites).phase == "done"
        log.ended("s", "")
    audit.audit(path, json=False)
    table = capsys.readouterr().out.split("what left")[1]
    kinds = {kind for release in releases for kind in release.what.split(AND)}
    absent = {"IdCountQuery", "AlignQuery", "PlacesQuery", "ReachQuery", "BinsQuery"}
    absent |= {"MagnitudesQuery", "EvaluationQuery", EVALUATION_BY_PARTY, "BinCountsQuery", "LevelSumsQuery"}
    absent |= {
        "LevelsQuery",
        "TimesQuery",
        SUMMARY_BY_PARTY,
        "SummaryQuery",
        "VoteQuery",
        "ResidualQuery",
        BY_PARTY,
        "RangeQuery",
        "SumsQuery",
        *UNASKED,
    }
    assert kinds == set(QUERIES) - absent
    assert all(QUERIES[kind] in table for kind in kinds)
    assert table.split("in all")[1].split()[:2] == [
        str(len(releases)),
        str(sum(release.cells for release in releases)),
    ]


def test_every_question_there_is_has_words():
    others = {*UNASKED, BY_PARTY, EVALUATION_BY_PARTY, SUMMARY_BY_PARTY}
    assert {question.__name__ for question in get_args(Query)} == set(QUERIES) - others


def test_the_audit_tells_what_other_parties_got(path, capsys):
    with AuditLog(path) as log:
        log.admitted("one", terms(PAIR))
        log.record(dataclasses.replace(RELEASE, session="one"))
        for turn in (2, 3):
            log.record(Relayed("one", turn, 1, "which rows go left", ("south",), 12_004, 1_501))
        log.record(Relayed("one", 3, 1, "gradients", ("south", "east"), 31_200, 249_600))
        log.ended("one", "")
    assert len(read_log(path)) == 6
    audit.audit(path, json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "relayed which rows go left of 12,004 rows, 2 times, 3.0 kB, to south" in text
    assert "relayed gradients of 31,200 rows, once, 249.6 kB, to south, east" in text
    audit.audit(path, json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (session,) = (event for event in events if event["event"] == "session")
    assert session["relayed"][1] == {
        "what": "gradients",
        "to": ["south", "east"],
        "times": 1,
        "rows": 31_200,
        "bytes": 249_600,
    }


@pytest.mark.parametrize("known", [True, False])
def test_the_audit_says_that_sums_of_columns_are_a_sites_own(path, capsys, known):
    """Encryption hides rows there, not the sums over them; and no group of parties hides one."""
    layouts, drop = {"one": LAYOUTS["two holders"], "two": LAYOUTS["three holders"]}, []
    with AuditLog(path) as log:
        for name, layout in layouts.items():
            agreed = terms_of(layout, protection="paillier").with_parties(["bank", *layout.held])
            log.admitted(name, agreed)
            asked = dataclasses.replace(RELEASE, session=name, protection="paillier", roster=agreed.parties)
            log.record(asked)
            log.record(Relayed(name, 2, 1, "which rows go left", agreed.parties[1:], 60, 8))
            log.ended(name, "")
            if not known:
                drop.append(agreed.digest)
    for digest in drop:
        change_terms(path, digest, None)
    audit.audit(path, json=False)
    text = " ".join(capsys.readouterr().out.split())
    says = "paillier: the aggregator could see sums of gradients over groups of rows, by the columns"
    assert text.count(says) == 2
    assert "never the numbers of a single one" not in text
    assert ("WARNING" in text) != known


def test_help_says_where_the_log_is():
    assert "fedboost.state/PARTY/memory.sqlite" in fedboost("audit", "--help").out
