"""`fedboost tune`: what a user gets wrong is one line."""

import asyncio
import json

import pytest
from refusals import refusal
from sites import consortium, fedboost, shared_out, terms

import fedboost as fb
from fedboost.runtime.tasks import terms_to_toml
from fedboost.views.approval import NOT_HIDDEN

ALL = ("north", "south")


@pytest.mark.parametrize(
    ("space", "options", "says"),
    [
        ("", (), "the search space has no settings"),
        ("gamma = [1]", (), "gamma must be [low, high], or a list of at least three values"),
        ("gamma = [true, false, true]", (), "gamma must be [low, high]"),
        ("gamma = [nan, 1, 2]", (), "gamma must be [low, high]"),
        (f"gamma = [0, {'9' * 400}]", (), "gamma must be [low, high]"),
        ("gamma = [-1, 1]", (), "gamma"),
        ('"\\u001b[2J" = [0, 1]', (), "unknown space"),
        ("{}", (), "not valid TOML"),
        (b"\xff\xfe", (), "not valid TOML"),
        ("gamma = [0, 1]", ("--trials", 129), "trials is 129, but must be from 2 to 128"),
        ("gamma = [0, 1]", ("--trials", 1), "'--trials': Input should be greater"),
        ("gamma = [0, 1]", ("--out", "tune.toml"), "specified with both --out and --save-terms"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, space, options, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(ALL)))
    (tmp_path / "space.toml").write_bytes(space if isinstance(space, bytes) else space.encode())
    said = refusal("tune", "terms.toml", "--space", "space.toml", "--save-terms", "tune.toml", *options)
    assert says in said
    assert said.removesuffix("\n").isprintable()
    assert not (tmp_path / "tune.toml").exists()


@pytest.mark.parametrize("options", [(), ("--out", "best.toml"), ("--json",)])
async def test_rounds_are_shown_and_where_the_best_terms_are(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    tables = shared_out(2)
    agreed = terms(tables, rounds=5, validation_fraction=0.3)
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreed))
    async with consortium(tmp_path / "c", tables) as one:
        where = "--aggregator", one.address, "--insecure-loopback"
        end = await asyncio.to_thread(fedboost, "tune", "terms.toml", "--trials", 3, *where, *options)
    assert end.code == 0, end.err
    rounds = [line for line in end.out.splitlines() if line.startswith("round ")]
    said = [line for line in end.err.splitlines() if not line.startswith("waiting for ")]  # slow to connect
    due = fb.tune(agreed.with_parties([]), tables, trials=3)
    first, seen = (
        "--out is not specified: the best terms are shown, but not saved",
        f"protection plain: {NOT_HIDDEN}",
    )
    if "--json" in options:
        assert json.loads(end.out) == {
            "metric": "logloss", "best": due.best, "trials": due.summary["trials"]
        }  # fmt: skip
        assert said == [first, seen]
        return
    assert [line.split(" best ")[0] for line in rounds] == [f"round {number}/5" for number in range(1, 6)]
    lowest = min(trial.value("logloss") for trial in due.trials)
    assert any(f"best logloss {lowest:.5f} (trial " in line for line in rounds)
    if not options:
        assert said == [first, seen]
        return
    last = f"best.toml: terms for training with the best settings, {due.terms.trees.rounds} rounds"
    assert said == [seen, last]
    assert fb.Terms.load("best.toml") == due.terms.with_parties(tables)
