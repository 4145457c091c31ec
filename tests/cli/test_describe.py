"""`fedboost describe`: the command against sites that allow it, and that do not."""

import asyncio
import json
import signal
import sys

import pytest
from refusals import refusal
from sites import consortium, fedboost, in_time, rows, shared_out, terms, until

import fedboost as fb
from fedboost.runtime.tasks import drift_terms, evaluation_terms, read_terms, terms_to_toml
from fedboost.views.approval import NOT_HIDDEN


def described(folder, tables, agreed, *options, policy=None):
    """The command against a consortium of these tables."""
    file = folder / "terms.toml"
    file.write_text(terms_to_toml(agreed.with_parties(tables)))

    async def scenario():
        async with consortium(folder / "c", {}) as one:
            for name, table in tables.items():
                one.start_party(name, table, **({} if policy is None else {"policy": policy}))
            where = "--aggregator", one.address, "--insecure-loopback"
            return await asyncio.to_thread(fedboost, "describe", file, *where, *options)

    return in_time(scenario())


def test_it_prints_a_table_or_json(tmp_path):
    tables = shared_out(3)
    end = described(tmp_path, tables, terms())
    assert (end.code, end.err) == (0, f"protection plain: {NOT_HIDDEN}\n")
    assert "\n180 rows of all parties, " in end.out
    (line,) = (line for line in end.out.splitlines() if line.startswith("dose"))
    missing = 10 * round(rows().to_pandas().dose.isna().sum() / 10)
    assert f"{missing / 180:.1%}" in line
    assert max(map(len, end.out.splitlines())) <= 80
    end = described(tmp_path, tables, terms(), "--json", "--min-count", "20")
    due = fb.describe(terms(), tables, min_count=20)
    assert json.loads(end.out) == {**due.summary, "advice": [*due.advice]}


def test_a_site_that_does_not_allow_it_says_how(tmp_path):
    policy = {"parties": "any", "analysts": "any", "columns": "any", "min_count": 40}
    policy |= {"protections": ["plain"], "min_parties": 1}
    end = described(tmp_path, shared_out(2), terms(), policy=policy)
    assert (end.code, end.out) == (2, "")
    assert "its policy has min_count = 40, but the terms have min_count = 10; set min_count = 40" in end.err
    assert "run `fedboost approve terms.toml --describe --config party.toml` at that site" in end.err


@pytest.mark.parametrize("command", ["train", "estimate", "compare", "simulate"])
@pytest.mark.parametrize("program", ["describe", "tune"])
def test_commands_that_train_do_not_take_such_terms(tmp_path, command, program):
    candidates = [{"max_depth": 1}, {"max_depth": 2}] if program == "tune" else []
    change = {"program": program, "candidates": candidates, "validation_fraction": 0.2}
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(["north"], **change)))
    options = {
        "train": ("--aggregator", "localhost:1", "--insecure-loopback", "--out", tmp_path / "m.json"),
        "estimate": ("--rows", 1000),
        "compare": ("--data", "a.csv", "--site", "s"),
        "simulate": ("--data", "a.csv", "--site", "s"),
    }
    assert f"program = '{program}', which does not train a model; use fedboost {program}" in refusal(
        command, tmp_path / "terms.toml", *options[command]
    )


@pytest.mark.parametrize("command", ["evaluate", "drift"])
def test_terms_about_a_model_are_saved_for_sites_to_approve(tmp_path, command):
    model = fb.simulate(terms(reference=True), shared_out(3)).model
    (tmp_path / "sub").mkdir()
    model.save(tmp_path / "model.json")
    file, given = tmp_path / "sub" / "asked.toml", ("--by", "ward") if command == "evaluate" else ()
    end = fedboost(command, tmp_path / "model.json", "--save-terms", file, *given)
    assert (end.code, end.out) == (0, "")
    assert f"{file}: terms for sites to approve, together with {tmp_path / 'model.json'}" in end.err
    make = {"evaluate": lambda: evaluation_terms(model, by=["ward"]), "drift": lambda: drift_terms(model)[0]}
    assert read_terms(file) == make[command]()
    assert fedboost(command, tmp_path / "model.json", "--save-terms", file, *given).code == 2
    assert "specify --aggregator to run a session, or --save-terms to write terms for approval" in refusal(
        command, tmp_path / "model.json"
    )


@pytest.mark.slow
async def test_ctrl_c_ends_the_session_and_the_command(tmp_path):
    agreed = terms(["north", "south"])
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    async with consortium(tmp_path / "c", {"north": shared_out(2)["north"]}) as one:
        where = "--aggregator", one.address, "--insecure-loopback"
        words = sys.executable, "-m", "fedboost", "describe", tmp_path / "terms.toml", *where
        process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
        await asyncio.wait_for(process.stderr.readline(), 30)  # it waits for the party that is absent
        process.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(process.stderr.read(), 20)
        await until(lambda: one.server.sessions.active is None)
        code, err = await process.wait(), rest.decode()
    assert code in (130, -signal.SIGINT)
    assert "Traceback" not in err
