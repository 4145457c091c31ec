"""`fedboost serve`: scores over REST, with processes of a bank, a phone company and an aggregator."""

import http.client
import json
import os
import signal
import threading
import time
from csv import reader

import numpy as np
import pyarrow as pa
import pytest
from commands import done, start
from processes import free_port, wait_until
from pyarrow import csv
from sites import fedboost

from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.tasks import terms_to_toml
from fedboost.terms.terms import Terms

pytestmark = pytest.mark.slow
PEOPLE, COMMON, NEW = 1200, 900, 60
POLICY = {
    "by_columns": True,
    "label_holders": ["bank"],
    "protections": ["plain"],
    "parties": ["bank", "telco"],
    "min_parties": 2,
    "min_common_rows": 100,
    "analysts": ["analyst"],
    "columns": "any",
    "max_predicted_rows": 10_000,
}
TERMS = {
    "parties": ["bank", "telco"],
    "label_holder": "bank",
    "protection": "plain",
    "model": "parties",
    "rounds": 3,
    "min_common_rows": 40,
    "min_child_weight": 2.5,
    "columns": {
        "label": "default",
        "row_id": "customer",
        "numeric": ["age", "minutes"],
        "categorical": {"plan": ["basic", "max"]},
        "held": {"telco": ["minutes", "plan"]},
    },
}
POLICY["min_common_rows"] = 40


def file_of(folder, name, **serve):
    """The file of a site with a service."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in serve.items()]
    path = folder / f"{name}-serve.toml"
    path.write_text((folder / f"{name}.toml").read_text() + "\n[serve]\n" + "\n".join(lines) + "\n")
    return path


class Deployed:
    """A trained consortium, and the services of its sites."""

    def __init__(self, cluster, folder, new):
        self.cluster, self.folder, self.new = cluster, folder, new
        self.port, self.processes = free_port(), {}
        tokens = folder / "tokens.toml"
        self.token = done("keys", "token", "app", "--role", "client", "--file", tokens).out.strip()

    def bank(self, killed=False, **serve):
        """killed: the process is to be killed."""
        settings = {"listen": f"127.0.0.1:{self.port}", "tokens": str(self.folder / "tokens.toml"), **serve}
        return self.start("bank", file_of(self.folder, "bank", **settings), killed)

    def telco(self, killed=False, **serve):
        settings = {"max_ids": 10_000, "min_known_ids": 1, **serve}
        return self.start("telco", file_of(self.folder, "telco", **settings), killed)

    def start(self, name, file, killed):
        log = open(self.folder / f"{name}-serve.log", "a")  # noqa: SIM115 - closed with the process
        with log:
            process = start("serve", "--config", str(file), alone=killed, stdout=log, stderr=log)
        self.processes[name] = process
        return process

    def log(self, name):
        return (self.folder / f"{name}-serve.log").read_text()

    def stop(self, name, by=signal.SIGTERM):
        process = self.processes.pop(name, None)
        if process is not None and process.poll() is None:
            os.kill(process.pid, by)
        if process is not None:
            process.wait(20)

    def stop_all(self):
        for name in [*self.processes]:
            self.stop(name)

    def call(self, method, path, body=None, token=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def score(self, rows, **more):
        return self.call("POST", "/api/v1/scores", {"rows": rows, **more})

    def until_ready(self, ready=True):
        def is_ready():
            try:
                status, health = self.call("GET", "/api/v1/health")
            except OSError:
                return False
            return status == 200 and health["ready"] == ready

        wait_until(is_ready, 25)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("consortium"), np.random.default_rng(0)
    ids, at_telco = 100_000 + draw.permutation(PEOPLE), 100_000 + draw.permutation(PEOPLE)[:COMMON]
    age, minutes = draw.normal(size=PEOPLE), draw.normal(size=COMMON)
    default = (age + draw.normal(size=PEOPLE) > 0).astype(int)
    csv.write_csv(pa.table({"customer": ids, "age": age, "default": default}), folder / "bank.csv")
    plans = np.array(["basic", "max"])[draw.integers(0, 2, COMMON)]
    csv.write_csv(pa.table({"customer": at_telco, "minutes": minutes, "plan": plans}), folder / "telco.csv")
    (folder / "terms.toml").write_text(terms_to_toml(Terms.read(TERMS)))
    files = {name: folder / f"{name}.csv" for name in ("bank", "telco")}
    with LocalCluster(folder, files, policy=POLICY, state=folder / "state") as cluster:
        where = "--aggregator", cluster.address, "--keys", cluster.keys / "analyst"
        done("train", folder / "terms.toml", *where, "--out", folder / "model.json")
        cluster.parties["bank"].terminate()
        cluster.parties["bank"].wait()
        known, unknown = draw.permutation(at_telco)[: NEW - 10], 900_000 + np.arange(10)
        new = {"customer": np.concatenate([known, unknown]), "age": draw.normal(size=NEW)}
        csv.write_csv(pa.table(new), folder / "new.csv")
        (part,) = (folder / "state" / "bank" / "models").glob("*.json")
        end = fedboost("predict", part, folder / "new.csv", "--party", folder / "bank.toml")
        assert end.code == 0, end.err
        due = [float(row[-1]) for row in list(reader(end.out.splitlines()))[1:]]
        rows = [
            {"customer": int(i), "age": float(a)} for i, a in zip(new["customer"], new["age"], strict=True)
        ]
        cluster.start_party("bank")
        yield cluster, folder, rows, due


@pytest.fixture
def deployed(trained):
    cluster, folder, rows, due = trained
    (folder / "tokens.toml").unlink(missing_ok=True)
    for name in ("bank", "telco"):
        (folder / f"{name}-serve.log").unlink(missing_ok=True)
        for file in (folder / "state" / name / "serve").glob("*"):
            file.unlink()
    services = Deployed(cluster, folder, rows)
    services.due = due
    yield services
    services.stop_all()


def test_scores_are_those_of_a_joint_prediction(deployed):
    deployed.telco()
    deployed.bank()
    deployed.until_ready()
    status, answer = deployed.score(deployed.new)
    assert (status, answer["scores"], answer["without"]) == (200, deployed.due, [])
    for place in (0, 7, NEW - 1):
        assert deployed.score([deployed.new[place]])[1]["scores"] == [deployed.due[place]]
    status, answer = deployed.score([deployed.new[0]], reasons=True)
    assert (answer["parties"], len(answer["reasons"][0])) == (["bank", "telco", "bias"], 3)


def test_without_a_token_nobody_is_answered(deployed):
    deployed.bank()
    viewer = done("keys", "token", "jo", "--file", deployed.folder / "tokens.toml").out.strip()
    wait_until(lambda: "scores are served" in deployed.log("bank"))
    for token, status in (("wrong", 401), (viewer, 403)):
        assert deployed.call("POST", "/api/v1/scores", {"rows": deployed.new[:1]}, token)[0] == status
        assert deployed.call("GET", "/api/v1/health", token=token)[0] == status
        assert deployed.call("GET", "/api/v1/openapi.json", token=token)[0] == status
    described = deployed.call("GET", "/api/v1/openapi.json")[1]
    assert {*described["paths"]} == {"/api/v1/scores", "/api/v1/health"}
    assert deployed.token not in deployed.log("bank")


GOOD = {"customer": 100_001, "age": 1.0}


BAD = [
    ({"rows": []}, "rows"),
    ({}, "rows"),
    ({"rows": [GOOD], "more": 1}, "more"),
    ({"rows": [{**GOOD, "agee": 1}]}, "unknown column 'agee'"),
    ({"rows": [{"age": 1.0}]}, "customer"),
    ({"rows": [{**GOOD, "age": "old"}]}, "age"),
    ({"rows": [{**GOOD, "age": [1]}]}, "must be a number or text"),
    ({"rows": [GOOD, {**GOOD, "age": "x"}]}, "must all be numbers, or all be text"),
    ({"rows": [{**GOOD, "customer": 1.5}]}, "customer"),
    ({"rows": 5}, "rows"),
]


def test_a_bad_request_is_one_sentence_that_says_what_is_wrong(deployed):
    """It ends before another party is asked, and charges nothing."""
    deployed.bank(max_ids_per_client=1)
    wait_until(lambda: "scores are served" in deployed.log("bank"))
    for body, says in BAD:
        status, answer = deployed.call("POST", "/api/v1/scores", body)
        assert (status, says in answer["error"]) == (400, True), answer
    connection = http.client.HTTPConnection("127.0.0.1", deployed.port, timeout=30)
    for body, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400)):
        connection.request("POST", "/api/v1/scores", body, {"Authorization": f"Bearer {deployed.token}"})
        answer = connection.getresponse()
        assert (answer.status, "error" in json.loads(answer.read())) == (status, True)
        connection.close()
    headers = {"Authorization": f"Bearer {deployed.token}", "Content-Length": str(9 << 20)}
    connection.request("POST", "/api/v1/scores", b"", headers)
    assert connection.getresponse().status == 413
    connection.close()
    status, answer = deployed.score([GOOD])
    assert (status, answer["error"].partition(":")[0]) == (503, "score-party-away")
    assert "Traceback" not in deployed.log("bank")


def test_kill_9_loses_no_request_and_no_charge_silently(deployed):
    """Of the other party: the client is told, and after its return all goes on with the same table. Of the
    service: the connection breaks."""
    deployed.telco(killed=True)
    deployed.bank(killed=True, max_ids_per_client=9)
    deployed.until_ready()
    assert deployed.score(deployed.new[:5])[1]["scores"] == deployed.due[:5]
    deployed.stop("telco", signal.SIGKILL)
    deployed.until_ready(False)
    status, answer = deployed.score(deployed.new[:1])
    assert (status, "telco" in answer["error"]) == (503, True)
    deployed.telco()
    deployed.until_ready()
    assert deployed.score(deployed.new[:1])[1]["scores"] == deployed.due[:1]
    assert deployed.log("telco").count("token table stored") == 1
    deployed.stop("bank", signal.SIGKILL)
    with pytest.raises(OSError, match="refused"):
        deployed.score(deployed.new[:1])
    deployed.bank(max_ids_per_client=9)
    deployed.until_ready()
    assert deployed.log("telco").count("token table stored") == 1
    status, answer = deployed.score(deployed.new[:3])  # 7 of 9 are charged, those that failed among them
    assert (status, answer["error"].partition(":")[0]) == (403, "score-limit")
    assert deployed.score(deployed.new[:2])[0] == 200


def test_a_request_that_waits_ends_when_the_other_party_dies(deployed):
    deployed.telco(killed=True)
    deployed.bank(timeout=30)
    deployed.until_ready()
    os.kill(deployed.processes["telco"].pid, signal.SIGSTOP)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(deployed.score(deployed.new[:1])))
    begin = time.monotonic()
    asking.start()
    time.sleep(0.5)
    deployed.stop("telco", signal.SIGKILL)
    asking.join(25)
    assert (answers[0][0], time.monotonic() - begin < 25) == (503, True)


def test_partial_scores_say_who_is_missing(deployed):
    deployed.telco(killed=True)
    deployed.bank(partial=True)
    deployed.until_ready()
    unknown = deployed.due[-1]  # telco does not know it
    deployed.stop("telco", signal.SIGKILL)
    deployed.until_ready(False)
    status, answer = deployed.score(deployed.new[-1:])
    assert (status, answer["scores"], answer["without"]) == (200, [unknown], ["telco"])


def test_the_limits_of_the_other_party_hold_over_restarts(deployed):
    deployed.telco(killed=True, max_ids=5)
    deployed.bank()
    deployed.until_ready()
    assert deployed.score(deployed.new[:4])[0] == 200
    deployed.stop("telco", signal.SIGKILL)
    deployed.until_ready(False)
    deployed.telco(max_ids=5)
    deployed.until_ready()
    status, answer = deployed.score(deployed.new[:2])
    assert (status, "score-limit" in answer["error"], "telco" in answer["error"]) == (403, True, True)
    assert deployed.score(deployed.new[:1])[0] == 200
    assert "request refused" in deployed.log("telco")


def test_single_rows_are_refused_unless_allowed(deployed):
    deployed.telco(min_known_ids=40)
    deployed.bank()
    deployed.until_ready()
    status, answer = deployed.score(deployed.new[:1])
    assert (status, "score-few-known" in answer["error"]) == (403, True)
    assert deployed.score(deployed.new)[1]["scores"] == deployed.due


def test_an_aggregator_that_restarts_is_found_again(deployed):
    deployed.telco()
    deployed.bank()
    deployed.until_ready()
    deployed.cluster.aggregator.kill()
    deployed.cluster.aggregator.wait()
    deployed.until_ready(False)
    deployed.cluster.start_aggregator()
    deployed.until_ready()
    assert deployed.score(deployed.new[:1])[1]["scores"] == deployed.due[:1]


# ---- a service that cannot start ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("telco", {}, "set `max_ids` in [serve]"),
        ("bank", {}, "set `listen` and `tokens` in [serve]"),
        ("bank", {"listen": "0.0.0.0:0", "tokens": "tokens.toml"}, "`certificate` and `key`"),
        ("bank", {"listen": "127.0.0.1:0", "tokens": "none.toml"}, "none.toml does not exist"),
        ("telco", {"max_ids": -1}, "max_ids"),
        ("telco", {"max_id": 1}, "max_id"),
    ],
)
def test_what_is_missing_in_a_file_is_one_line(trained, name, settings, says):
    _, folder, _, _ = trained
    end = fedboost("serve", "--config", file_of(folder, name, **settings))
    assert (end.code, says in " ".join(end.err.split())) == (2, True), end.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"by_columns" = true', '"by_columns" = false'),
        ('"label_holders" = ["bank"]', '"label_holders" = ["shop"]'),
        ('"by_columns" = true', '"by_columns" = true, "tasks" = ["train"]'),
    ],
)
def test_a_policy_that_does_not_allow_predictions_allows_no_service(trained, old, new):
    _, folder, _, _ = trained
    file = file_of(folder, "telco", max_ids=5)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    end = fedboost("serve", "--config", file)
    key = new.split('"')[-4] if "tasks" in new else new.split('"')[1]
    assert (end.code, f"policy has {key}" in " ".join(end.err.split())) == (2, True), end.err


def test_one_service_at_a_time(deployed):
    deployed.telco()
    wait_until(lambda: "answers about its rows" in deployed.log("telco"))
    end = fedboost("serve", "--config", file_of(deployed.folder, "telco", max_ids=5))
    assert (end.code, "another `fedboost serve`" in " ".join(end.err.split())) == (2, True)


def test_which_model_must_be_clear(trained, tmp_path):
    _, folder, _, _ = trained
    file = file_of(folder, "telco", max_ids=5)
    part = next((folder / "state" / "bank" / "models").glob("*.json"))
    end = fedboost("serve", "--config", file, "--model", part)
    assert (end.code, "is not a part of party 'telco'" in " ".join(end.err.split())) == (2, True)
    end = fedboost("serve", "--config", file, "--model", tmp_path / "none.json")
    assert end.code == 2
