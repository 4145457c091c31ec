"""`fedboost privacy`: a budget, a plan and a card, in words and for scripts; what is wrong is one line."""

import json
import math
import re

import pytest
from anything import ANYTHING
from memories import ANY, THREE, cost_of, noisy, opened, spend_all
from pyarrow import parquet
from sites import fedboost, rows, shared_out, terms, written

from fedboost.privacy.noise import noise_of
from fedboost.protocol.site import Budget, SessionOffer
from fedboost.results.privacy import Outlook, PrivacyCard
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.site.memory import read_spent
from fedboost.runtime.site.store import NAME
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.hiding import TREES

SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "north.csv"\n'
BUDGET = "[policy]\nepsilon = 3.0\ndelta = 1e-5\n"


def lines(*arguments):
    """The JSON that a command prints."""
    end = fedboost(*arguments, "--json")
    assert (end.code, end.err) == (0, "")
    return [json.loads(line) for line in end.out.splitlines()]


def refused(*arguments):
    """The one line that a command ends with."""
    end = fedboost(*arguments)
    assert (end.code, end.out) == (2, "")
    (line,) = end.err.splitlines()
    return line


@pytest.fixture
def site(tmp_path):
    file = tmp_path / "north.toml"
    file.write_text(SITE + BUDGET)
    return file


@pytest.fixture
def agreed(tmp_path):
    file = tmp_path / "terms.toml"
    file.write_text(terms_to_toml(noisy()))
    return file


def test_a_budget_without_a_memory_is_not_said_to_be_whole(site):
    line = refused("privacy", "budget", "--config", site)
    assert "there is no memory of dataset 'north', which is needed to record the privacy budget" in line
    assert [*site.parent.iterdir()] == [site]
    site.write_text(SITE)
    (row,) = lines("privacy", "budget", "--config", site)
    assert (row["dataset"], row["sessions"], row["spent"], row["budget"]) == ("north", 0, 0.0, None)
    assert [*site.parent.iterdir()] == [site]


def test_a_budget_counts_all_sessions_that_the_memory_has(site):
    site.write_text(SITE + "[policy]\nmax_sessions = 3\n")
    agreements = {"a": terms(THREE), "b": terms(THREE), "c": noisy(), "d": terms(THREE)}
    with opened(site.parent / "fedboost.state" / "north" / NAME, "north") as memory:
        for name, agreement in agreements.items():
            session = memory.begin(SessionOffer(name, agreement), ANY)
            if name != "d":
                session.meet(1)
    (row,) = lines("privacy", "budget", "--config", site)
    counts = [row[key] for key in ("sessions", "took_part", "never_began", "with_noise")]
    assert counts == [4, 3, 1, 1]
    out = fedboost("privacy", "budget", "--config", site).out
    assert re.search(r"^north +4 +1 +1 +0 ", out, re.MULTILINE)
    assert "Sessions with dataset north: 3 of at most 3 (max_sessions)." in " ".join(out.split())
    assert max(map(len, out.splitlines())) < 80


def test_a_budget_says_what_was_spent_and_what_is_left(site):
    state = site.parent / "fedboost.state"
    for dataset in ("north", "others"):
        with opened(state / dataset / NAME, dataset) as memory:
            spend_all(memory, "s", noisy())
    own, other = lines("privacy", "budget", "--config", site)
    assert (own["own"], other["own"], other["left"]) == (True, False, None)
    assert own["cost"] == cost_of(state / "north" / NAME)
    assert own["left"] == Budget(3.0, 1e-5).left(own["cost"])
    assert 3.0 - own["spent"] < own["left"] < 3.0
    output = fedboost("privacy", "budget", "--config", site).out
    assert f"{own['spent']:.4g}" in output
    assert f"{own['left']:.4g}" in output
    site.write_text(SITE + 'dataset = "others"\n')
    assert "This site has no privacy budget." in fedboost("privacy", "budget", "--config", site).out
    others = lines("privacy", "budget", "--config", site)
    assert [(row["dataset"], row["own"]) for row in others] == [("others", True), ("north", False)]


def test_what_is_wrong_with_a_budget_is_one_line(site):
    (folder := site.parent / "fedboost.state" / "north").mkdir(parents=True)
    (folder / NAME).write_bytes(b"")
    assert "this memory is an empty file" in refused("privacy", "budget", "--config", site)
    assert "cannot read" in refused("privacy", "budget", "--config", site.parent / "none.toml")
    site.write_text(SITE + "[policy]\nepsilon = 3.0\n")
    assert "alone does not set a budget" in refused("privacy", "budget", "--config", site)


def test_training_with_noise_says_no_metrics_and_what_importances_are_worth(tmp_path, agreed):
    parquet.write_table(rows(), tmp_path / "all.parquet")
    model = tmp_path / "model.json"
    end = fedboost("simulate", agreed, "--data", tmp_path / "all.parquet", "--out", model)
    assert (end.code, end.err) == (0, "")
    assert "2 trees: " in end.out
    assert re.search(r"^traffic +[0-9.]+ kB +\(in all\)$", end.out, re.MULTILINE)
    assert "logloss" not in end.out
    assert re.search(r"^round 2/2 [0-9.]+ kB$", end.out, re.MULTILINE)
    assert "divided among many splits" in " ".join(fedboost("explain", model).out.split())


def test_a_plan_says_what_the_terms_release(agreed):
    *releases, of_rows, total = lines("privacy", "plan", agreed, "--rows", 8000)
    card = PrivacyCard.of(noisy()).summary
    assert [(one["what"], one["times"], one["cost"]) for one in releases] == [
        (one["what"], one["times"], one["cost"]) for one in card["releases"]
    ]
    assert (total["epsilon"], total["cost"]) == (1.0, card["cost"])
    assert (of_rows["rows"], of_rows["leaf_rows"]) == (8000, 8000 / 64)
    *_, stronger = lines("privacy", "plan", agreed, "--epsilon", 0.1)
    assert stronger["cost"] < total["cost"] / 20
    *_, of_six = lines("privacy", "plan", agreed, "--parties", 6)
    assert of_six["honest"] == 5
    said = fedboost("privacy", "plan", agreed)
    assert (said.code, said.err) == (0, "")
    assert "strong" in said.out
    assert "With 10,000 rows, a group of bins has 156 rows on average" in " ".join(said.out.split())


def test_an_outlook_is_what_drawn_noise_does():
    agreement = noisy()
    expected, release = Outlook.of(agreement, 8000), agreement.plan.releases[TREES]
    shares = [noise_of(bytes([party] * 32), release.share, 20_000) for party in range(release.drawn)]
    scale = 1.0 / math.hypot(0.5, 0.25)
    moved = agreement.bound.gradient(1.0) * sum(shares) / (expected.leaf_rows * 0.25 * scale)
    assert math.isclose(moved.std(), expected.by_noise, rel_tol=0.03)
    assert math.isclose(expected.by_chance, 0.5 / (math.sqrt(expected.leaf_rows) * 0.25))
    assert Outlook.of(agreement, 80_000).worth > 8 * expected.worth
    assert 0 < expected.worth < expected.leaf_rows


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "multi:softprob", "num_class": 3},
        {"objective": "reg:squarederror", "columns": {**noisy().columns.model_dump(), "label_range": (0, 9)}},
        {"objective": "count:poisson", "columns": {**noisy().columns.model_dump(), "label_range": (0, 9)}},
    ],
)
def test_every_objective_with_noise_has_an_outlook(settings):
    few, many = (Outlook.of(noisy(**settings), rows) for rows in (1_000, 1_000_000))
    assert 0 < few.worth < many.worth
    assert many.by_noise < many.by_chance < few.by_noise


def test_what_is_wrong_with_a_plan_is_one_line(agreed):
    assert "less than or equal to 16" in refused("privacy", "plan", agreed, "--epsilon", 99)
    assert "needs 3 parties" in refused("privacy", "plan", agreed, "--parties", 2)
    agreed.write_text(terms_to_toml(noisy(parties=())))
    assert "add e.g. --parties 3" in refused("privacy", "plan", agreed)
    agreed.write_text(terms_to_toml(terms(THREE, protection="masked")))
    assert "does not set noise, so there is nothing to plan; add noise = {" in refused(
        "privacy", "plan", agreed
    )


def test_a_card_is_of_a_model_with_noise_and_no_other(tmp_path):
    tables = shared_out(3)
    model = simulate(noisy(), tables).model
    model.save(tmp_path / "with.json")
    simulate(terms(rounds=1), tables).model.save(tmp_path / "without.json")
    card = PrivacyCard.of(model.terms).summary
    (said,) = lines("report", tmp_path / "with.json", "--privacy")
    assert said == json.loads(json.dumps(card))
    shown = fedboost("report", tmp_path / "with.json", "--privacy").out
    releases = []
    for line in shown.partition("\nEvery release\n")[2].partition("\n\n")[0].splitlines()[1:]:
        what, *cells = re.split(r" {2,}", line.strip())
        if cells:
            releases.append((what, cells[0]))
        else:  # the line above goes on
            releases[-1] = f"{releases[-1][0]} {what}", releases[-1][1]
    assert releases == [(release["what"], str(release["times"])) for release in card["releases"]]
    page = " ".join(shown.split())
    assert all(f"- {gap}" in page for gap in card["not_covered"])
    assert page.startswith("Epsilon 1 at delta 1e-05: strong.")
    attributes = json.loads((tmp_path / "with.json").read_text())["learner"]["attributes"]
    assert json.loads(attributes["fedboost.privacy"]) == said
    assert said["roster"] == list(THREE)
    assert said["epsilon_spent"] > 0.99 * said["epsilon"]
    assert said["epsilon_spent"] <= said["epsilon"]
    assert "without noise" in refused("report", tmp_path / "without.json", "--privacy")
    assert "cannot read" in refused("report", tmp_path / "none.json", "--privacy")
    without = json.loads((tmp_path / "without.json").read_text())["learner"]["attributes"]
    assert "fedboost.privacy" not in without


@pytest.mark.slow
def test_a_party_that_is_killed_is_charged_for_each_release_once(tmp_path):
    tables, agreement = written(tmp_path, shared_out(3)), noisy(rounds=20)
    with LocalCluster(tmp_path, tables, policy={**ANYTHING, "epsilon": 1.0, "delta": 1e-5}) as consortium:
        training = consortium.analyst.train(agreement, wait=60)
        for row in training:
            if row["round"] in (2, 9):
                consortium.parties["south"].kill()
                consortium.parties["south"].wait()
                consortium.start_party("south")
        assert training.model is not None
        for name in THREE:
            spent = read_spent(consortium.state / name / NAME)
            assert spent.releases == 22
            assert math.isclose(spent.cost, agreement.plan.cost, rel_tol=1e-12)
