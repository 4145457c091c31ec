"""The commands, as a user types them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from csv import reader

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from sites import NAMES, fedboost, rows, shared_out, terms, written

from fedboost import __version__
from fedboost.cli.progress import progress
from fedboost.people.summary import summary
from fedboost.runtime.data.draft import split_by_site
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model_file import Model
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.telemetry import logger
from fedboost.runtime.terms_file import read_terms, terms_to_toml

COMMANDS = (
    "demo",
    "simulate",
    "compare",
    "aggregator",
    "party",
    "train",
    "predict",
    "explain",
    "terms",
    "digest",
    "approve",
    "audit",
)
INSECURE = "--insecure-loopback"
ALONE = 'parties = ["north"], protections = ["plain"], min_parties = 1, min_rows_per_leaf = 1 }\n'
WARD, LABEL = 2, 4
HEAVY = ("numpy", "numba", "pyarrow", "grpc", "pydantic", "sklearn", "structlog", "pandas")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with rows.csv and terms.toml for two parties."""
    monkeypatch.chdir(tmp_path)
    csv.write_csv(rows(), "rows.csv")
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(["north", "south"])))
    return tmp_path


def done(*arguments):
    """Run a command that must succeed; what it wrote to standard output and error."""
    end = fedboost(*arguments)
    assert end.code == 0, end.err
    return end


def objects(text):
    """JSON, one object a line."""
    return [json.loads(line) for line in text.splitlines()]


# ---- help -------------------------------------------------------------------------------------------


def test_help_names_every_command():
    text = done("--help").out
    assert all(command in text for command in COMMANDS)
    assert fedboost("-h").out == text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    text = " ".join(done(command, "--help").out.split())
    assert f"Example: fedboost {command}" in text


def test_the_version():
    assert done("--version").out == f"fedboost {__version__}\n"


@pytest.mark.parametrize("arguments", [("nonsense",), ("simulate",), ("simulate", "x", "--parties", "0")])
def test_a_command_line_that_cannot_be_is_refused(arguments):
    end = fedboost(*arguments)
    assert end.code == 2
    assert end.out == ""
    assert "Error" in end.err


@pytest.mark.parametrize("imported", ["fedboost", "fedboost.cli.main"])
def test_nothing_heavy_is_imported_before_it_is_needed(imported):
    code = f"import sys, {imported}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    end = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    loaded = end.stdout.split()
    assert "fedboost" in loaded
    assert set(loaded) & set(HEAVY) == set()


# ---- terms ------------------------------------------------------------------------------------------


def test_terms_drafts_a_short_file_that_simulate_accepts(folder):
    parties = ("--party", "north", "--party", "south", "--party", "east")
    end = done("terms", "rows.csv", "--label", "y", "--exclude", "site", *parties, "--out", "drafted.toml")
    assert end.out == ""
    text = (folder / "drafted.toml").read_text()
    assert len(text.splitlines()) <= 15
    drafted = read_terms(folder / "drafted.toml")
    assert drafted.columns == terms().columns
    assert drafted.parties == ("north", "south", "east")
    assert "# 10 rows in a leaf at least: sites refuse fewer by default\nmin_child_weight = 2.5\n" in text
    (folder / "drafted.toml").write_text(text.replace("rounds = 100", "rounds = 2"))
    done("simulate", "drafted.toml", "--data", "rows.csv", "--out", "model.json")
    assert len(Model.load("model.json").booster.trees) == 2


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        (("--label", "y"), 2.5),
        (("--label", "ward"), 5.0),
        (("--label", "age"), 10.0),
        (("--label", "y", "--objective", "count:poisson"), None),
        (("--label", "y", "--weight", "age"), None),
    ],
)
def test_drafted_terms_keep_the_rows_of_a_leaf_that_sites_want(folder, options, leaves):
    done("terms", "rows.csv", *options, "--exclude", "site", "--out", "drafted.toml")
    drafted = read_terms(folder / "drafted.toml")
    assert drafted.trees.min_child_weight == (1.0 if leaves is None else leaves)
    broken = [breach.key for breach in Policy().breaches(drafted)]
    assert ("min_rows_per_leaf" in broken) == (leaves is None)


def test_a_digest_of_terms_that_nobody_is_offered(folder):
    (folder / "alone.toml").write_text(terms_to_toml(terms()))
    for name, said in (("alone.toml", "names no parties"), ("nowhere.toml", "No such file")):
        end = fedboost("digest", name)
        assert (end.code, end.out) == (2, "")
        assert end.err.startswith(f"fedboost: {name}: ")
        assert said in end.err
        assert end.err.count("\n") == 1


def test_terms_go_to_standard_output_and_hints_to_standard_error(folder):
    table = rows().append_column("note", pa.array([None] * rows().num_rows, pa.string()))
    csv.write_csv(table, "rows.csv")
    end = done("terms", "rows.csv", "--label", "y")
    (folder / "drafted.toml").write_text(end.out)
    assert set(read_terms(folder / "drafted.toml").columns.features) == {"age", "dose", "ward", "site"}
    assert "left out note" in end.err
    assert "parties = " in end.err


# ---- simulate ---------------------------------------------------------------------------------------


def test_terms_by_site_name_the_parties_and_say_what_counts_as_1(folder):
    words = rows().set_column(LABEL, "y", pa.array(["no", "yes", "no"] * 60))
    csv.write_csv(words, "words.csv")
    end = done("terms", "words.csv", "--label", "y", "--site", "site", "--out", "new.toml")
    drafted = read_terms(folder / "new.toml")
    assert drafted.parties == ("east", "north", "south")
    assert drafted.columns.features == ("age", "dose", "ward")
    assert drafted.columns.positive == "yes"
    assert "y 'yes', the rarer value here, counts as 1" in end.err


def test_predict_says_which_levels_count_as_missing(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    wards = rows()["ward"].to_pylist()
    strange = rows().set_column(WARD, "ward", pa.array(["x", "z", *wards[2:]]))
    csv.write_csv(strange, "strange.csv")
    end = done("predict", "m.json", "strange.csv")
    assert "ward has 2 rows with a level nobody declared ('x', ...)" in end.err
    missing = rows().set_column(WARD, "ward", pa.array([None, None, *wards[2:]]))
    csv.write_csv(missing, "missing.csv")
    assert done("predict", "m.json", "missing.csv").out == end.out


def test_simulate_by_site_makes_the_model_of_the_sites(folder):
    (folder / "any.toml").write_text(terms_to_toml(terms()))
    end = done("simulate", "any.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json", "--json")
    *rounds, last = objects(end.out)
    assert [list(line) for line in rounds] == [["event", "round", "logloss", "seconds", "bytes"]] * 3
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert {line["event"] for line in rounds} == {"round"}
    assert set(last) == {
        "event",
        "model",
        "fingerprint",
        "terms",
        "metrics",
        "traffic",
        "protection",
        "signed_by",
    }
    assert last["event"] == "done"
    assert last["model"] == "m.json"
    assert last["metrics"] == {"logloss": rounds[-1]["logloss"]}
    assert set(last["traffic"]) == set(NAMES[:3])
    assert all(set(sums) == {"sent", "received"} for sums in last["traffic"].values())
    model = Model.load("m.json")
    assert model.fingerprint == last["fingerprint"]
    assert model.terms.digest == last["terms"]
    assert model.to_bytes() == simulate(terms(), split_by_site(rows(), "site")).model.to_bytes()
    assert end.err == ""


@pytest.mark.parametrize(
    ("options", "parties"),
    [
        ((), ("north", "south")),
        (("--parties", "4"), ("party-1", "party-2", "party-3", "party-4")),
        (("--parties", "1", "--seed", "5"), ("party-1",)),
    ],
)
def test_simulate_shares_the_rows_out(folder, options, parties):
    done("simulate", "terms.toml", "--data", "rows.csv", *options, "--out", "m.json")
    model = Model.load("m.json")
    assert model.parties == parties
    assert model.fingerprint == simulate(terms(), [rows()]).model.fingerprint


def test_simulate_speaks_to_people_too(folder):
    end = done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    for part in ("3 trees", "logloss", "north", "south", "sent per round", "model: m.json"):
        assert part in end.out
    assert "not saved" in done("simulate", "terms.toml", "--data", "rows.csv").out
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_a_model_file_is_replaced_whole(folder):
    (folder / "m.json").write_text("an older file")
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    assert len(Model.load("m.json").booster.trees) == 3


# ---- predict ----------------------------------------------------------------------------------------


def test_base_margins_are_drafted_trained_with_and_predicted_from(folder):
    csv.write_csv(rows().append_column("known", [np.linspace(-1, 1, rows().num_rows)]), "based.csv")
    done("terms", "based.csv", "--label", "y", "--base-margin", "known", "--out", "based.toml")
    assert read_terms(folder / "based.toml").columns.base_margin == "known"
    done("simulate", "based.toml", "--data", "based.csv", "--out", "m.json")
    _, *values = done("predict", "m.json", "based.csv").out.splitlines()
    expected = Model.load("m.json").predict("based.csv").tolist()
    assert list(map(float, values)) == expected
    assert "column 'known' is missing" in fedboost("predict", "m.json", "rows.csv").err


def test_times_are_drafted_trained_with_and_predicted(folder):
    of_times = rows().append_column("from", [np.linspace(1, 9, rows().num_rows)])
    late = np.where(np.arange(rows().num_rows) % 3, 9.5, np.inf)
    csv.write_csv(of_times.append_column("to", [late]), "times.csv")
    given = "--label", "from", "--label-upper-bound", "to", "--objective", "survival:aft", "--exclude", "y"
    done("terms", "times.csv", *given, "--out", "times.toml")
    columns = read_terms(folder / "times.toml").columns
    assert columns.others == ("from", "to")
    assert not {"from", "to", "y"} & {*columns.features}
    done("simulate", "times.toml", "--data", "times.csv", "--out", "m.json")
    _, *values = done("predict", "m.json", "times.csv").out.splitlines()
    assert min(map(float, values)) > 0
    assert "aft-nloglik" in Model.load("m.json").rounds[-1]


def test_predict_writes_what_the_model_predicts(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    expected = Model.load("m.json").predict("rows.csv")
    assert len(set(expected.tolist())) > 3
    printed = done("predict", "m.json", "rows.csv").out
    header, *values = printed.splitlines()
    assert header == "prediction"
    assert np.array(list(map(float, values))).tolist() == expected.tolist()
    end = done("predict", "m.json", "rows.csv", "--out", "p.csv")
    assert end.out == ""
    assert (folder / "p.csv").read_text() == printed


def test_classes_from_drafted_terms_to_predictions(folder):
    """The names are those of the label, however a CSV has to spell them."""
    names = {"a": "north, east", "b": 'the "b"', "c": "prediction"}
    wards = [names[ward] for ward in rows().column("ward").to_pylist()]
    csv.write_csv(rows().set_column(WARD, "ward", pa.array(wards)), "rows.csv")
    end = done("terms", "rows.csv", "--label", "ward", "--site", "site", "--out", "new.toml")
    assert "ward has 3 classes: 'north, east', 'prediction', 'the \"b\"'" in end.err
    text = (folder / "new.toml").read_text()
    assert "num_class" not in text
    (folder / "new.toml").write_text(text.replace("rounds = 100", "rounds = 2"))
    done("simulate", "new.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json")
    model = Model.load("m.json")
    assert len(model.booster.trees) == 6
    header, *lines = reader(io.StringIO(done("predict", "m.json", "rows.csv").out))
    assert header == ["prediction_", "north, east", "prediction", 'the "b"']
    assert [[float(cell) for cell in line[1:]] for line in lines] == model.predict("rows.csv").tolist()
    assert [line[0] for line in lines] == model.predict_class("rows.csv").tolist()
    done("predict", "m.json", "rows.csv", "--out", "p.csv")
    assert len((folder / "p.csv").read_text().splitlines()) == rows().num_rows + 1


def test_a_ranking_from_drafted_terms_to_predictions(folder):
    table = rows().append_column("case", [[f"case {i % 31}" for i in range(rows().num_rows)]])
    csv.write_csv(table, "rows.csv")
    options = ("--label", "y", "--group", "case", "--objective", "rank:ndcg", "--exclude", "site")
    done("terms", "rows.csv", *options, "--out", "ranking.toml")
    drafted = read_terms(folder / "ranking.toml")
    assert (drafted.columns.group, drafted.columns.features) == ("case", ("age", "dose", "ward"))
    text = (folder / "ranking.toml").read_text().replace("rounds = 100", "rounds = 4")
    settings = "validation_fraction = 0.3\neval_metric = 'ndcg@3'\n"
    (folder / "ranking.toml").write_text(settings + text)
    simulate = ("simulate", "ranking.toml", "--data", "rows.csv", "--json")
    events = objects(done(*simulate, "--parties", "3", "--seed", "2", "--out", "one.json").out)
    rounds = [event for event in events if "ndcg@3" in event]
    assert len(rounds) == 4
    assert all(0 < row["validation-ndcg@3"] <= 1 for row in rounds)
    done(*simulate, "--parties", "5", "--out", "other.json")  # groups are shared out whole
    assert Model.load("one.json").fingerprint == Model.load("other.json").fingerprint
    done("predict", "one.json", "rows.csv", "--out", "scores.csv")
    scores = csv.read_csv("scores.csv").column("prediction").to_numpy()
    label = table.column("y").to_numpy()
    assert scores[label == 1].mean() > scores[label == 0].mean() + 0.1
    assert "group        case: rows ranked against each other" in summary(drafted)


def test_numbers_are_drafted_as_classes_only_when_told(folder):
    scores = pa.array(np.arange(rows().num_rows) % 4)
    csv.write_csv(rows().append_column("score", scores), "rows.csv")
    asked = ("terms", "rows.csv", "--label", "score")
    end = done(*asked)
    assert 'objective = "reg:squarederror"' in end.out
    assert (
        "score holds 4 whole numbers, taken for amounts; if they stand for classes: --objective mul"
        in end.err
    )
    end = done(*asked, "--objective", "multi:softprob")
    assert "num_class = 4" in end.out
    assert "amounts" not in end.err
    assert "did you mean" in fedboost(*asked, "--objective", "multi:softprop").err


def test_predict_needs_no_label_and_takes_new_levels_for_missing(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    table = rows().drop_columns(["y", "site"])
    for name, ward in (("new", "never seen"), ("none", None)):
        wards = pa.array([ward] * table.num_rows, pa.string())
        csv.write_csv(table.set_column(2, "ward", wards), f"{name}.csv")
    assert done("predict", "m.json", "new.csv").out == done("predict", "m.json", "none.csv").out


def test_a_reader_who_leaves_early_hears_no_complaint(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    csv.write_csv(pa.concat_tables([rows()] * 200), "rows.csv")
    process = start("predict", "m.json", "rows.csv", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) != 0


# ---- where the output goes ---------------------------------------------------------------------------


def ended(*arguments, stdout=subprocess.PIPE, **environment):
    """Run the command in a process of its own: exit code, standard output and error, as bytes."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "fedboost", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


FULL_OUTPUT = {
    "predict": ("predict", "m.json", "rows.csv"),
    "simulate": ("simulate", "terms.toml", "--data", "rows.csv"),
    "help": ("--help",),
}


@pytest.mark.parametrize("arguments", FULL_OUTPUT.values(), ids=FULL_OUTPUT)
def test_a_full_disk_behind_standard_output_is_one_line(folder, arguments):
    simulate(terms(rounds=1), [rows()]).model.save("m.json")
    with open("/dev/full", "wb") as full:
        end = ended(*arguments, stdout=full)
    assert end.stderr == b"fedboost: cannot write the output: No space left on device\n"
    assert end.returncode == 2


def test_names_the_locale_cannot_write_are_written(folder):
    csv.write_csv(rows().rename_columns(["ä", "dose", "ward", "site", "y"]), "rows.csv")
    end = ended("terms", "rows.csv", "--label", "y", PYTHONIOENCODING="ascii")
    assert end.returncode == 0, end.stderr
    (folder / "drafted.toml").write_bytes(end.stdout)
    assert "ä" in read_terms(folder / "drafted.toml").columns.numeric
    end = ended("terms", "rows.csv", "--label", "ö", PYTHONIOENCODING="ascii:strict")
    assert end.returncode == 2
    assert end.stderr.startswith(rb"fedboost: column '\xf6' is missing: the columns are '\xe4', ")


def test_a_training_that_stops_early_says_what_it_keeps(folder):
    terms_of = terms(["north", "south"], rounds=60, validation_fraction=0.4, early_stopping_rounds=2)
    (folder / "early.toml").write_text(terms_to_toml(terms_of))
    end = fedboost("simulate", "early.toml", "--data", "rows.csv", "--out", "early.json")
    assert end.code == 0, end.err
    model = Model.load("early.json")
    assert model.kept == len(model.booster.trees) == len(model.rounds) - 2
    assert f"stopped after {len(model.rounds)} rounds: round {model.kept} was the best" in end.out
    assert f"validation-logloss {model.rounds[model.kept - 1]['validation-logloss']:.5f}" in end.out


def test_predictions_and_terms_go_through_a_device(folder):
    simulate(terms(rounds=1), [rows()]).model.save("m.json")
    (folder / "out").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    for arguments in (("predict", "m.json", "rows.csv"), ("terms", "rows.csv", "--label", "y")):
        end = ended(*arguments, "--out", "out")
        assert end.returncode == 0, end.stderr
        assert end.stdout.decode() == done(*arguments).out
    assert (folder / "out").is_symlink()


def test_names_are_no_markup(folder):
    sites = pa.array(["[/x]", "[bold]y", "[z"] * 60)
    csv.write_csv(rows().set_column(3, "site", sites), "rows.csv")
    (folder / "any.toml").write_text(terms_to_toml(terms()))
    text = done("simulate", "any.toml", "--data", "rows.csv", "--site", "site").out
    assert [line.split(" ")[0] for line in text.splitlines()[-5:-2]] == ["[/x]", "[bold]y", "[z"]


def test_the_progress_bar_takes_any_name(monkeypatch):
    """A metric is called what the aggregator calls it."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with redirect_stdout(terminal), progress(terms(), json=False) as draw:
        draw({"round": 0, "[/x]\x1b": 0.5, "seconds": 0.1, "bytes": 10})
    assert "[/x]\\x1b 0.50000" in terminal.getvalue()


# ---- the network ------------------------------------------------------------------------------------


def start(*arguments, **pipes):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "fedboost", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, env=environment, **pipes)


@pytest.fixture
def processes():
    """Processes a test started; those that still run at its end are ended, by their ids."""
    started = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.slow
def test_the_whole_walk_by_hand(folder, processes):
    """Parties first, then the aggregator, then the analyst; and everything stops when told to."""
    tables = shared_out(3)
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    listening = json.loads(serving.stdout.readline())
    assert listening["event"] == "listening"
    address = listening["address"]
    (folder / "three.toml").write_text(terms_to_toml(terms(tables)))
    for name, file in written(folder, tables).items():
        config = f'party = "{name}"\naggregator = "{address}"\ndata = "{file.name}"\n'
        (folder / f"{name}.toml").write_text(config)
        done("approve", "three.toml", "--config", f"{name}.toml", "--yes")
        once = ("--once",) if name == "east" else ()
        processes.append(start("party", "--config", f"{name}.toml", INSECURE, *once, stderr=subprocess.PIPE))
    end = done("train", "three.toml", "--aggregator", address, INSECURE, "--out", "m.json", "--json")
    assert (folder / "m.json").read_bytes() == simulate(terms(), tables).model.to_bytes()
    *rounds, last = objects(end.out)
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert set(last["traffic"]) == set(tables)
    assert "protection plain: the aggregator sees" in end.err
    *attending, once = processes[1:]
    assert once.wait(10) == 0
    for process, stop in zip(
        (*attending, serving), (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True
    ):
        assert process.poll() is None
        process.send_signal(stop)
        assert process.wait(10) == 0
    for process in processes[1:]:
        logged = process.stderr.read()
        assert "session done" in logged
        assert "Traceback" not in logged


@pytest.mark.slow
def test_a_party_that_is_to_attend_once_fails_with_its_session(folder, processes):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    address = json.loads(serving.stdout.readline())["address"]
    rows_of_words = rows().set_column(0, "age", pa.array(["old"] * rows().num_rows))
    (file,) = written(folder, {"north": rows_of_words}).values()
    config = f'party = "north"\naggregator = "{address}"\ndata = "{file.name}"\n'
    (folder / "party.toml").write_text(config + 'policy = { columns = "any", ' + ALONE)
    party = start("party", "--config", "party.toml", "--once", INSECURE, stderr=subprocess.PIPE)
    processes.append(party)
    (folder / "one.toml").write_text(terms_to_toml(terms(["north"])))
    end = fedboost("train", "one.toml", "--aggregator", address, INSECURE, "--out", "m.json")
    assert end.code == 2
    *_, last = end.err.splitlines()
    assert last.startswith("fedboost: ")
    assert "north" in last
    assert "its rows do not fit the terms" in last
    assert "'age'" not in last
    assert "old" not in last
    assert not (folder / "m.json").exists()
    assert party.wait(10) == 2
    *_, last = party.stderr.read().splitlines()
    assert last.startswith("fedboost: ")
    assert "'old' in row 1" in last


@pytest.mark.slow
def test_ctrl_c_ends_a_training_quietly(folder, processes):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    address = json.loads(serving.stdout.readline())["address"]
    training = start(
        "train", "terms.toml", "--aggregator", address, INSECURE, "--out", "m.json", stderr=subprocess.PIPE
    )
    processes.append(training)
    assert training.stderr.readline() == "waiting for north, south\n"
    training.send_signal(signal.SIGINT)
    assert training.wait(10) == 130
    assert "Traceback" not in training.stderr.read()
    time.sleep(0.1)
    assert serving.poll() is None


# ---- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_a_log_has_colours_only_where_they_can_be_seen(monkeypatch, terminal, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    error = io.StringIO()
    error.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", error)
    logger("party").info("at hand", party="north")
    assert ("\x1b[" in error.getvalue()) == coloured
    assert "at hand" in error.getvalue()


# ---- demo -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--site", "site"), ["east", "north", "south"]),
        (("--parties", "2"), ["site-1", "site-2"]),
    ],
)
def test_the_demo_of_ones_own_table(folder, options, names):
    table = rows()
    # Levels of one row each: some of those rows are held out, and nobody trains on them.
    wards = table.column("ward").to_pylist()
    rare = [f"rare {row}" if row < 20 else ward for row, ward in enumerate(wards)]
    csv.write_csv(table.set_column(2, "ward", pa.array(rare)), "rows.csv")
    end = done(
        "demo", "--data", "rows.csv", "--label", "y", *options, "--rounds", "2", "--out", "d", "--json"
    )
    *rounds, last = objects(end.out)
    assert [line["round"] for line in rounds] == [0, 1]
    assert last["event"] == "done"
    assert last["equal"] is True
    assert set(last["held_out"]) == {*(f"{name} alone" for name in names), "federated", "pooled"}
    assert last["held_out"]["federated"] == last["held_out"]["pooled"]
    assert set(last["held_out"]["pooled"]) == {"auc", "logloss", "error"}
    assert set(last["traffic"]) == set(names)
    assert len(Model.load(last["model"]).booster.trees) == 2
    for name in names:
        assert "session offered" in (folder / "d" / f"{name}.log").read_text()
        assert (folder / "d" / f"{name}.csv").exists()
    # What lies there trains the same model once more.
    tables = {name: folder / "d" / f"{name}.csv" for name in names}
    again = simulate(read_terms(folder / "d" / "terms.toml"), tables).model
    assert again == Model.load(last["model"])


@pytest.mark.slow
def test_the_demo_of_classes(folder):
    options = ("--label", "ward", "--site", "site", "--rounds", "2", "--out", "d", "--json")
    last = objects(done("demo", "--data", "rows.csv", *options).out)[-1]
    assert last["equal"] is True
    scores = last["held_out"]
    assert scores["federated"] == scores["pooled"]
    assert set(scores["north alone"]) == {"mlogloss", "merror"}
    assert Model.load(last["model"]).classes == ("a", "b", "c")


@pytest.mark.slow
def test_the_demo_takes_site_names_and_columns_of_any_kind(folder):
    from pyarrow import parquet

    names = ["terms", "a/b", "aggregator", "Aggregator", "Ünï 😀"]
    table = rows().set_column(3, "site", pa.array(names * 36))
    table = table.append_column("list", pa.array([[1, 2]] * 180))
    table = table.append_column("kind", pa.array(["u", "v"] * 90).dictionary_encode())
    parquet.write_table(table, "rows.parquet")
    options = ("--label", "y", "--site", "site", "--rounds", "1", "--out", "d", "--json")
    end = done("demo", "--data", "rows.parquet", *options)
    last = objects(end.out)[-1]
    assert last["equal"] is True
    assert set(last["traffic"]) == set(names)
    assert "kind" in Model.load(last["model"]).booster.features


@pytest.mark.slow
def test_the_scores_of_the_demo_take_any_name(folder):
    csv.write_csv(rows().set_column(3, "site", pa.array(["[/x]", "[b"] * 90)), "rows.csv")
    options = ("--label", "y", "--site", "site", "--rounds", "1", "--out", "d")
    lines = done("demo", "--data", "rows.csv", *options).out.splitlines()
    assert lines[0].startswith("2 sites: [/x] (")
    for start in ("[/x] alone", "[b alone"):
        assert any(line.startswith(start) for line in lines)


@pytest.mark.slow
def test_the_demo_by_itself(folder):
    pytest.importorskip("sklearn")
    for _ in range(2):  # the second time over what the first left
        text = done("demo", "--rounds", "3").out
        for part in ("3 sites: north", "federated == pooled: yes", "north alone", "sent per round"):
            assert part in text
        assert (folder / "fedboost-demo" / "model.json").exists()
        *_, command = text.splitlines()
        assert command == "fedboost audit fedboost-demo/demo.state/north/north.audit.jsonl"
        assert "No warnings" in done(*command.split()[1:]).out
        assert "nothing is approved here" not in (folder / "fedboost-demo" / "north.log").read_text()
