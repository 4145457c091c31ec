"""`fedboost train --reproducible` and `fedboost verify`, over the network and with keys."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from masked_consortia import THREE, masked
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import terms_to_toml

REPRODUCIBLE = ("again-1.json", "again-2.json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with signed.json and two models of one consortium without their sessions, and its keys."""
    folder = tmp_path_factory.mktemp("trained")
    tables = shared_out(3)
    bundles = bundles_of(folder / "keys", tables)
    (folder / "terms.toml").write_text(terms_to_toml(masked(tables)))

    async def scenario():
        async with consortium(folder / "c", tables, bundles=bundles) as one:
            keys = ("--aggregator", one.address, "--keys", folder / "keys" / "analyst")
            for out in ("signed.json", *REPRODUCIBLE):
                beside = ("--reproducible",) if out in REPRODUCIBLE else ()
                asked = ("train", folder / "terms.toml", *keys, "--out", folder / out, *beside)
                end = await asyncio.to_thread(fedboost, *asked)
                assert end.code == 0, end.err

    in_time(scenario())
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy, to spoil."""
    for path in trained.glob("*.json"):
        shutil.copy(path, tmp_path)
    shutil.copytree(trained / "keys", tmp_path / "keys")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ROOT = ("--consortium", "keys/analyst/consortium.pem")


def verified(model, *options):
    """The exit code of `fedboost verify`, and the JSON it prints."""
    end = fedboost("verify", model, *(options or ROOT), "--json")
    return end.code, json.loads(end.out)


def test_two_trainings_give_the_same_bytes_and_sessions_of_their_own(folder):
    first, second = (Model.load(name) for name in REPRODUCIBLE)
    assert (folder / REPRODUCIBLE[0]).read_bytes() == (folder / REPRODUCIBLE[1]).read_bytes()
    assert first.session != second.session
    assert first.attestations != second.attestations
    signed = Model.load("signed.json")
    assert (folder / "signed.json").read_bytes() != (folder / REPRODUCIBLE[0]).read_bytes()
    assert signed.to_bytes(session=False) == (folder / REPRODUCIBLE[0]).read_bytes()
    assert not (folder / "signed.session.json").exists()
    simulated = simulate(masked(THREE), shared_out(3)).model
    assert simulated.to_bytes(session=False) == (folder / REPRODUCIBLE[0]).read_bytes()


@pytest.mark.parametrize("model", ["signed.json", *REPRODUCIBLE])
@pytest.mark.parametrize("options", [ROOT, ("--keys", "keys/north")], ids=["consortium", "keys"])
def test_a_model_holds_with_its_session_in_it_or_beside_it(folder, model, options):
    code, facts = verified(model, *options)
    assert code == 0
    assert facts["holds"] is True
    assert facts["signatures"] == {party: {"holds": True} for party in THREE}
    assert facts["terms"] == masked(THREE).digest
    assert facts["fingerprint"] == Model.load(model).fingerprint
    assert facts["analyst"] == "analyst"


def test_people_read_who_signed(folder):
    end = fedboost("verify", "signed.json", *ROOT)
    assert end.code == 0
    lines = end.out.splitlines()
    assert lines[0] == "The signatures are valid: 3 of 3 parties signed these trees, under these terms."
    assert "model        signed.json: binary:logistic, 3 trees, masked" in lines
    assert [line.split() for line in lines if line.startswith(THREE)] == [[party, "valid"] for party in THREE]
    assert max(map(len, lines)) <= 80


def test_other_trees_do_not_hold(folder):
    other = simulate(masked(THREE, rounds=2), shared_out(3)).model
    signed = Model.load("signed.json")
    Model(**{**vars(signed), "booster": other.booster}).save("signed.json")
    code, facts = verified("signed.json")
    assert (code, facts["holds"]) == (1, False)
    assert facts["conclusion"] == "party north signed trees that differ from the model's trees"
    assert all(not signature["holds"] for signature in facts["signatures"].values())
    end = fedboost("verify", "signed.json", *ROOT)
    assert end.code == 1
    assert "The signatures are NOT valid: party north signed trees that differ" in end.out


def test_a_leaf_that_was_changed_does_not_hold(folder):
    content = json.loads((folder / "signed.json").read_text())
    tree = content["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["split_conditions"][tree["left_children"].index(-1)] = -9.0
    (folder / "signed.json").write_text(json.dumps(content))
    code, facts = verified("signed.json")
    assert (code, facts["holds"]) == (1, False)
    assert "signed.json is not as fedboost wrote it" in facts["conclusion"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fedboost.parties", '["north", "south", "west"]'),
        ("fedboost.protection", "plain"),
        ("fedboost.terms_digest", "0" * 64),
        ("best_iteration", "0"),
    ],
)
def test_attributes_that_nobody_signed_say_nothing_else(folder, name, value):
    """What the terms say is there a second time, for readers of XGBoost's file; and by best_iteration its
    estimators predict with fewer trees."""
    content = json.loads((folder / "signed.json").read_text())
    content["learner"]["attributes"][name] = value
    (folder / "signed.json").write_text(json.dumps(content))
    code, facts = verified("signed.json")
    assert (code, facts["holds"]) == (1, False)
    assert facts["conclusion"] == (
        f"signed.json was modified: attribute {name} was changed or added after fedboost wrote the file"
    )


def test_a_party_whose_signature_is_wrong_is_named_alone(folder):
    session = json.loads((folder / "again-1.session.json").read_text())
    signatures = json.loads(session["fedboost.attestations"])
    signatures["south"]["signature"] = signatures["north"]["signature"]
    session["fedboost.attestations"] = json.dumps(signatures)
    (folder / "again-1.session.json").write_text(json.dumps(session))
    code, facts = verified("again-1.json")
    assert code == 1
    assert facts["signatures"] == {
        "north": {"holds": True},
        "south": {"holds": False, "fault": "the signature of 'south' is invalid"},
        "east": {"holds": True},
    }


def test_the_session_of_another_training_does_not_hold_where_rows_were_others(folder):
    simulate(masked(THREE), shared_out(3, rows(seed=1))).model.save("other.json")
    shutil.copy("again-1.session.json", "other.session.json")
    assert verified("other.json")[0] == 1
    shutil.copy("again-2.session.json", "again-1.session.json")
    assert verified("again-1.json")[0] == 0


def test_strangers_and_those_who_were_denied_do_not_count(folder):
    bundles_of(folder / "others", THREE)
    code, facts = verified("signed.json", "--keys", "others/analyst")
    assert code == 1
    assert "issued by another consortium" in facts["conclusion"]
    serial = bundles_of_serial(folder / "keys" / "south")
    (folder / "keys" / "north" / "denied.txt").write_text(serial + "\n")
    code, facts = verified("signed.json", "--keys", "keys/north")
    assert code == 1
    assert [party for party, found in facts["signatures"].items() if not found["holds"]] == ["south"]


def bundles_of_serial(folder):
    """The serial number of a bundle's certificate, in hex."""
    from cryptography import x509

    return f"{x509.load_pem_x509_certificate((folder / 'certificate.pem').read_bytes()).serial_number:x}"


def test_too_few_signatures_and_none_do_not_hold(folder):
    signed = Model.load("signed.json")
    Model(**{**vars(signed), "attestations": {"north": signed.attestations["north"]}}).save("few.json")
    code, facts = verified("few.json")
    assert (code, facts["conclusion"]) == (1, "1 of 3 parties signed; 3 are needed")
    simulate(terms(), shared_out(3)).model.save("unsigned.json")
    code, facts = verified("unsigned.json")
    assert (code, facts["conclusion"]) == (1, "no party signed this model: anyone could have made it")


def test_a_model_over_another_takes_the_session_beside_it_away(folder):
    simulate(terms(), shared_out(3)).model.save("again-1.json")
    assert not (folder / "again-1.session.json").exists()
    assert Model.load("again-1.json").attestations == {}
    Model.load("signed.json").save("signed-2.json", reproducible=True)
    assert Model.load("signed-2.json").to_bytes() == (folder / "signed.json").read_bytes()
    (folder / "mine.session.json").write_text("{}")
    simulate(terms(), shared_out(3)).model.save("mine.json")
    assert (folder / "mine.session.json").read_text() == "{}"


def reported(*options):
    """The report of signed.json."""
    end = fedboost("report", "signed.json", *options, "--out", "r.html", "--force")
    assert (end.code, end.out, end.err) == (0, "", "")
    return Path("r.html").read_text(encoding="utf-8")


def test_a_report_says_if_the_signatures_hold(folder):
    holds = "The signatures are valid: 3 of 3 parties signed these trees, under these terms."
    page = reported("--keys", "keys/analyst")
    assert f"{holds} Analyst analyst requested the session on " in page
    assert page.count("<td>valid</td>") == 3
    assert "NOT valid" not in page
    assert reported() == Model.load("signed.json").report()
    assert reported().count("<td>present, not checked</td>") == 3
    assert Model.load("signed.json").report(keys="keys/analyst") == page
    other = simulate(masked(THREE, rounds=2), shared_out(3)).model
    signed = Model.load("signed.json")
    Model(**{**vars(signed), "booster": other.booster}).save("signed.json")
    page = reported("--keys", "keys/analyst")
    assert (
        page.count("The signatures are NOT valid: party north signed trees that differ from the model") == 2
    )
    assert page.count("<td>INVALID: party ") == 3
