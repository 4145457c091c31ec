"""`fedboost join`: what a site does before its party runs, one step after the other, and what is missing."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from approvals import keyboard
from pyarrow import csv
from sites import fedboost

from fedboost.cli import common
from fedboost.cli.serve import Part
from fedboost.errors import ConfigError
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.terms import Terms

ROWS = 1100
TERMS = {
    "parties": ["bank", "telco"],
    "label_holder": "bank",
    "protection": "plain",
    "rounds": 2,
    "min_child_weight": 10.0,
    "columns": {
        "label": "default",
        "row_id": "customer",
        "numeric": ["age", "minutes"],
        "held": {"telco": ["minutes"]},
    },
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of a bank, in which there are its table, its file and terms; and an operator's keys."""
    draw = np.random.default_rng(0)
    table = {"customer": np.arange(ROWS), "age": draw.normal(size=ROWS), "default": draw.integers(0, 2, ROWS)}
    csv.write_csv(pa.table(table), tmp_path / "bank.csv")
    site = {"party": "bank", "aggregator": "localhost:1", "data": "bank.csv", "keys": "keys/bank"}
    (tmp_path / "bank.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in site.items()))
    (tmp_path / "terms.toml").write_text(terms_to_toml(Terms.read(TERMS)))
    monkeypatch.chdir(tmp_path)
    assert fedboost("keys", "init-consortium", "--aggregator", "--folder", "root").code == 0
    read_bundle(tmp_path / "root" / "aggregator", "aggregator")
    return tmp_path


def join(*options):
    return fedboost("join", "--config", "bank.toml", *options)


def sign(*names):
    """The operator signs requests and sends the answers back."""
    end = fedboost("keys", "sign", *(f"{name}.request.pem" for name in names), "--folder", "root", "--yes")
    assert end.code == 0, end.err
    for name in names:
        with open(f"{name}.answer.pem", "wb") as file, open(f"root/{name}.answer.pem", "rb") as answer:
            file.write(answer.read())


def missing(end):
    """What a command says is missing."""
    assert (end.code, end.err) == (1, ""), end
    return [line.removeprefix("missing: ") for line in end.out.splitlines() if line.startswith("missing: ")]


def test_each_step_is_taken_once(here):
    first = join("--analyst", "marie")
    assert missing(first) == [
        "the certificate of party 'bank'",
        "the certificate of analyst 'marie'",
        "the terms: add --terms FILE when the analyst has sent them",
    ]
    keys = [(here / "keys" / name / "key.pem").read_bytes() for name in ("bank", "marie")]
    assert join("--analyst", "marie").out == first.out
    sign("bank")
    assert missing(join("--analyst", "marie"))[0] == "the certificate of analyst 'marie'"
    sign("marie")
    assert missing(join("--analyst", "marie")) == [
        "the terms: add --terms FILE when the analyst has sent them"
    ]
    assert keys == [(here / "keys" / name / "key.pem").read_bytes() for name in ("bank", "marie")]
    for name, role in (("bank", "party"), ("marie", "analyst")):
        read_bundle(here / "keys" / name, role)


def test_no_one_approves_without_a_terminal(here):
    join()
    sign("bank")
    end = join("--terms", "terms.toml", "--analyst", "marie")
    assert (end.code, "standard input is not a terminal" in end.err) == (2, True)
    assert "The terms break" in end.out
    assert missing(join())[-1].startswith("the terms")


@pytest.fixture
def ready(here):
    """The folder with all keys."""
    join("--analyst", "marie")
    sign("bank", "marie")
    join("--analyst", "marie")
    return here


WITH_TERMS = "--analyst", "marie", "--terms", "terms.toml"


def test_approved_terms_are_not_asked_about_again(ready, monkeypatch):
    ran = []
    monkeypatch.setattr(Part, "take", lambda part, role, config: ran.append((role, str(config))))
    with keyboard(monkeypatch) as typed:
        typed("n")
        end = join(*WITH_TERMS)
        assert (end.code, end.err.endswith("not approved: nothing was written\n")) == (1, True)
        typed("y")
        end = join(*WITH_TERMS)
    assert end.code == 0, end.err
    assert "No problems were found" in end.out
    assert end.out.endswith("nothing is missing; next: fedboost party --config bank.toml\n")
    end = join(*WITH_TERMS)
    assert (end.code, "[y/N]" in end.err, "approved: terms.toml" in end.out) == (0, False, True)
    assert not ran
    assert join(*WITH_TERMS, "--run").code == 0
    assert ran == [("party", "bank.toml")]


def test_an_approval_for_one_analyst_is_not_one_for_another(ready, monkeypatch):
    with keyboard(monkeypatch) as typed:
        typed("y")
        assert join(*WITH_TERMS).code == 0
    monkeypatch.setattr(sys, "stdin", None)
    join("--analyst", "jo")
    sign("jo")
    end = join("--analyst", "jo", "--terms", "terms.toml")
    assert (end.code, "terminal" in end.err) == (2, True)


def test_a_table_that_does_not_fit_is_not_approved(ready):
    (ready / "bank.csv").write_text("customer,years,default\n1,2,0\n2,3,1\n")
    end = join(*WITH_TERMS)
    assert end.code in (1, 2)
    assert "age" in end.out + end.err
    assert "[y/N]" not in end.err


@pytest.mark.parametrize(
    ("keys", "says"), [("", "key 'keys' is missing"), ('keys = "keys/other"\n', "must be named bank")]
)
def test_a_file_that_names_no_keys_is_refused(here, keys, says):
    (here / "bank.toml").write_text(f'party = "bank"\naggregator = "localhost:1"\ndata = "bank.csv"\n{keys}')
    end = join()
    assert (end.code, says in " ".join(end.err.split())) == (2, True), end.err
    assert not (here / "keys").exists()


def test_several_requests_are_signed_with_one_command_and_each_is_asked_about(here, monkeypatch):
    join("--analyst", "marie")
    asked, answers = [], ["n", "y"]
    monkeypatch.setattr(common, "ask_terminal", lambda question: asked.append(question) or answers.pop(0))
    end = fedboost("keys", "sign", "bank.request.pem", "marie.request.pem", "--folder", "root")
    assert (end.code, end.err) == (1, "not signed: nothing was written\n")
    assert [question.split("'")[1] for question in asked] == ["bank", "marie"]
    assert {path.name for path in (here / "root").glob("*.answer.pem")} == {"marie.answer.pem"}


# ---- mistakes: one line with a code, and nothing is lost -------------------------------------------------


def codes(monkeypatch):
    """The codes of errors that are made from here on."""
    made, init = [], ConfigError.__init__

    def noted(self, code, *rest):
        made.append(code)
        init(self, code, *rest)

    monkeypatch.setattr(ConfigError, "__init__", noted)
    return made


def copied(source, target):
    with open(source, "rb") as file, open(target, "wb") as copy:
        copy.write(file.read())


def refused(monkeypatch, *options):
    """The code with which a command is refused, with nothing changed in the folder of keys."""
    before = {path: path.read_bytes() for path in Path("keys").rglob("*.pem")}
    made = codes(monkeypatch)
    end = join(*options)
    assert end.code == 2, end
    assert "Traceback" not in end.err
    assert {path: path.read_bytes() for path in Path("keys").rglob("*.pem")} == before
    return made[-1]


@pytest.fixture
def requested(here):
    """The folder with two keys that await their certificates."""
    join("--analyst", "marie")
    return here


def test_an_answer_for_another_name_is_refused(requested, monkeypatch):
    sign("marie")
    copied("marie.answer.pem", "bank.answer.pem")
    with monkeypatch.context() as patch:
        assert refused(patch, "--analyst", "marie") == "keys-answer-other"
    with monkeypatch.context() as patch:
        assert refused(patch) == "keys-answer-other"


def test_an_answer_of_another_consortium_is_refused(requested, monkeypatch):
    sign("bank")
    join()
    assert fedboost("keys", "init-consortium", "--folder", "other").code == 0
    assert fedboost("keys", "sign", "marie.request.pem", "--folder", "other", "--yes").code == 0
    copied("other/marie.answer.pem", "marie.answer.pem")
    with monkeypatch.context() as patch:
        assert refused(patch, "--analyst", "marie") == "keys-other-root"
    fedboost("keys", "accept", "marie.answer.pem")
    with monkeypatch.context() as patch:
        assert refused(patch, "--analyst", "marie") == "keys-other-root"


def test_a_new_answer_for_a_key_that_has_one_is_not_ignored(ready, monkeypatch):
    assert fedboost("keys", "init-consortium", "--folder", "other").code == 0
    assert fedboost("keys", "sign", "bank.request.pem", "--folder", "other", "--yes").code == 0
    copied("other/bank.answer.pem", "bank.answer.pem")
    with monkeypatch.context() as patch:
        assert refused(patch) == "keys-answer-unused"
    (ready / "bank.answer.pem").unlink()
    assert missing(join()) == ["the terms: add --terms FILE when the analyst has sent them"]


@pytest.mark.parametrize("lost", ["key.pem", "request.pem"])
def test_a_folder_that_is_half_made_is_not_used(requested, monkeypatch, lost):
    (requested / "keys" / "bank" / lost).unlink()
    with monkeypatch.context() as patch:
        assert refused(patch) == "keys-incomplete"


def test_a_request_next_to_the_file_is_the_one_of_the_key(requested, monkeypatch):
    request = requested / "bank.request.pem"
    content = request.read_bytes()
    request.unlink()
    assert join().code == 1
    assert request.read_bytes() == content
    copied("marie.request.pem", "bank.request.pem")
    with monkeypatch.context() as patch:
        assert refused(patch) == "keys-request-other"


def test_a_bundle_that_cannot_be_used_is_not_reported_as_present(ready, monkeypatch):
    denied = ready / "keys" / "bank" / "denied.txt"
    with monkeypatch.context() as patch:
        denied.write_text(next(_serials(ready, "bank")) + "\n")
        assert refused(patch) == "keys-certificate-invalid"
    denied.unlink()
    (ready / "keys" / "bank" / "key.pem").unlink()
    with monkeypatch.context() as patch:
        assert refused(patch) == "file-failed"


def _serials(folder, name):
    """Serial numbers of the certificates that were issued for a name."""
    for line in (folder / "root" / "issued.txt").read_text().splitlines():
        if line.endswith(f" {name}"):
            yield line.split(" ")[0]


@pytest.mark.parametrize(
    ("name", "code"),
    [("bank", "analyst-is-party"), ("any", "analyst-any"), ("", "analyst-name-invalid")],
)
def test_a_name_that_no_analyst_can_have_gets_no_key(here, monkeypatch, name, code):
    with monkeypatch.context() as patch:
        assert refused(patch, "--analyst", name) == code
    assert not (here / "keys").exists()
