"""From `fedboost audit` alone a reader finds which logs are of sessions that were abused: it warns of them,
and of no others, however many parties were lost, restarted and asked again in those."""

import dataclasses
import json
import os
from collections import deque

import numpy as np
import old_logs
import pytest
from faults import CONTINUED, NOISY, REFRESHED, STEPS_OF_FAULTS, World
from inprocess import randomly, shard_of, sites_of, terms_of
from sites import fedboost

from fedboost.boosting.programs import boosting, dp_random_trees
from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import Refused
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.ledger import Charge
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Release
from fedboost.protocol.site_memory import Limits, TransientMemory
from fedboost.runtime.site.audit import AuditLog, read_log, terms_file

"""Logs that fedboost wrote before the terms were kept beside them. honest: a masked training of two rounds;
again-after-bye: after a training ended, eight more attempts with eight other cut points."""
SMALL = {"protection": "masked", "rounds": 2, "max_depth": 2, "max_bin": 8}
ROWS = 90
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(ROWS, 2)).astype(np.float32)
Y = (X[:, 0] + DRAW.normal(size=ROWS) > 0).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p0.audit.jsonl"


def agreement(parties=3, **settings):
    """Terms over the rows of this module, and the rows of each party."""
    terms = terms_of(X, parties, **{**SMALL, **settings})
    return terms, dict(zip(terms.parties, randomly(ROWS, parties), strict=True))


def noisy(placement):
    noise = {"epsilon": 4.0, "delta": 1e-5, "placement": placement}
    return {"noise": noise, "ranges": [(-3, 3)] * 2}


def train(log, name, terms, parts, memory=None, permit=lambda offer: Limits()):
    """A session of that name, every message in turn; p0 records in the log. The aggregator's session."""
    sites = sites_of(terms, {party: shard_of(X, Y, rows=rows) for party, rows in parts.items()})
    sites["p0"] = dataclasses.replace(
        sites["p0"],
        permit=permit,
        taken=lambda offer: log.admitted(offer.session, offer.terms, attempt=offer.attempt),
        record=log.record,
        memory=memory or TransientMemory(os.urandom, "p0"),
    )
    program = boosting.train if terms.noise is None else dp_random_trees.train
    aggregator = AggregatorSession(name, terms, program, NOTHING_YET, draw=os.urandom)
    ends = {party: PartySession(site) for party, site in sites.items()}
    waiting = deque(aggregator.start())
    while waiting:
        party, message = waiting.popleft()
        for reply in ends[party].handle(message):
            waiting.extend(aggregator.handle(party, reply))
    log.ended(name, ends["p0"].ended or "")
    return aggregator


class LoggedWorld(World):
    """A session with faults whose parties keep audit logs, as the node does: a party that forgets was killed,
    and writes no end."""

    def __init__(self, seed, folder):
        super().__init__(seed)
        self.folder = folder
        self.logs = {name: AuditLog(folder / f"{name}.jsonl") for name in self.sites}
        self.sites = {name: self._logged(name, site) for name, site in self.sites.items()}
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        self.closed = []

    def _logged(self, name, site):
        log = self.logs[name]
        return dataclasses.replace(
            site,
            taken=lambda offer: log.admitted(offer.session, offer.terms, attempt=offer.attempt),
            record=log.record,
        )

    def deliver(self, name, line):
        before, session = self.ends[name], self.heard[name]
        super().deliver(name, line)
        end = self.ends[name]
        if before is not end and before.ended is None and session:
            self.logs[name].ended(session, "another session began")
        self._close(name, end)

    def leave(self, name):
        super().leave(name)  # not by its own will: it takes the session up again
        self.closed.append(self.ends[name])
        if self.heard[name]:
            self.logs[name].ended(self.heard[name], "it has had enough", paused=True)

    def _close(self, name, end):
        if end.ended is not None and not any(end is other for other in self.closed):
            self.closed.append(end)
            self.logs[name].ended(self.heard[name], end.ended)

    def play(self):
        """Faults for a while, then calm; the logs that were written."""
        for _ in range(STEPS_OF_FAULTS):
            if self.over():
                break
            self.step()
        self.calm()
        for log in self.logs.values():
            log.close()
        return [log for name in self.sites if (log := self.folder / f"{name}.jsonl").exists()]


def warnings(path):
    """The rules that `fedboost audit` warns by; what it prints says the same."""
    end = fedboost("audit", path, "--json")
    assert end.code == 0, end.err
    events = [json.loads(line) for line in end.out.splitlines()]
    rules = [event["rule"] for event in events if event["event"] == "warning"]
    assert events[-1]["warnings"] == len(rules)
    text = fedboost("audit", path).out
    assert ("WARNING" in text) == bool(rules) == ("No warnings" not in text)
    assert max(map(len, text.splitlines()[1:])) < 80
    assert fedboost("audit", path, "--strict").code == bool(rules)
    return rules


# ---- ten logs ---------------------------------------------------------------------------------------


def a_training(path):
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement()).phase == "done"


def a_training_with_losses(path):
    """A party that is lost, killed and restarted, and an aggregator that is killed."""
    LoggedWorld(58, path.parent).play()
    (path.parent / "p2.jsonl").rename(path)
    attempts = {entry.event.attempt for entry in read_log(path) if entry.event.kind == "released"}
    begun = [entry for entry in read_log(path) if entry.event.kind == "admitted"]
    assert len(attempts) > 2
    assert len(begun) > 1


def noise_of_the_sites(path):
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(**noisy("distributed"))).phase == "done"


def sessions_of_equal_and_of_other_groups(path):
    terms, parts = agreement()
    others = terms.with_parties(("p0", "p3", "p4"))
    moved = dict(zip(others.parties, parts.values(), strict=True))
    memory = TransientMemory(os.urandom, "p0")
    with AuditLog(path) as log:
        for name, agreed, rows in (("s1", terms, parts), ("s2", terms, parts), ("s3", others, moved)):
            assert train(log, name, agreed, rows, memory).phase == "done"


def a_refusal_and_a_training(path):
    def permit(offer):
        if offer.terms.trees.max_depth > 2:
            raise Refused("site p0 refuses: its policy has max_depth = 2")
        return Limits()

    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(max_depth=3), permit=permit).phase == "failed"
        assert train(log, "s2", *agreement(), permit=permit).phase == "done"


def a_session_that_goes_on_after_its_end(path):
    """After Bye, Admit of the same session with the next attempt meets a party that remembers nothing, and
    asks for histograms of cut points around one row: its label."""
    old_logs.again_after_bye(path)


def a_group_less_one(path):
    """A training of p0 to p3 and one of p0 to p2, at a site whose memory was deleted between: the difference
    of the two row counts is that of p3."""
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(4)).phase == "done"
        assert train(log, "s2", *agreement(3)).phase == "done"


def noise_of_the_aggregator(path):
    """Terms that leave the noise to the aggregator show it exact sums, and cost a small epsilon."""
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(**noisy("central"))).phase == "done"


def one_name_under_two_terms(path):
    """The same name under other terms at a site that was restarted: each has a plan of its own."""
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(seed=1)).phase == "done"
        assert train(log, "s1", *agreement(seed=2)).phase == "done"


def forty_histograms_under_one_round(path):
    """Terms of one round and depth 1 are agreed to, and forty histograms asked for."""
    terms, _ = agreement(rounds=1, max_depth=1)
    with AuditLog(path) as log:
        log.admitted("s1", terms)
        for turn in range(1, 41):
            log.record(answer(terms, turn, "HistogramQuery"))


def answer(terms, turn, what, **settings):
    """An answer of session s1, to a question that is asked once."""
    shape = {"cells": 34, "size": 200, "protection": terms.hiding.protection, "roster": terms.parties}
    place = {"question": f"{turn:064x}", "position": f"{turn + 1000:064x}"}
    return Release(
        **{"session": "s1", "turn": turn, "attempt": 1, "what": what, **shape, **place, **settings}
    )


@pytest.mark.parametrize(
    ("write", "due", "said"),
    [
        (
            a_training,
            [],
            [
                "No warnings: all that left is what the agreed terms allow.",
                "signed by no analyst's signature (connections without keys)",
                "how many rows lie in each column interval 4 5 4964",
                "error of the model, summed over all rows 3 3 6",
            ],
        ),
        (
            one_name_under_two_terms,
            ["other-terms"],
            [
                "1. ABUSE? 2 different agreements were run under one session name, s1: seed was 1, then 2.",
                "Session s1 (1 of 2): see warning 1",
                "Session s1 (2 of 2): see warning 1",
            ],
        ),
        (noise_of_the_sites, [], ["each site added a share of it", "epsilon 3.983 was spent ended"]),
        (
            a_group_less_one,
            ["similar-groups"],
            [
                "1. CHECK: Session s1 had p3, session s2 not. Subtracting one result from the other gives "
                "the totals of p3 alone",
                "Nobody meant it if p3 dropped out; otherwise p3 was singled out. Ask the analyst.",
                "Whoever runs this site: name the parties to train with in `parties` of [policy].",
            ],
        ),
        (
            a_refusal_and_a_training,
            [],
            ["s1 0 refused nothing left", "s2 13 model as agreed", "max_depth = 2 left nothing"],
        ),
        (
            a_session_that_goes_on_after_its_end,
            ["after-end", "other-question"],
            [
                "this log does not record which questions they were",
                "(1 of 2): see warnings 1 and 2",
                "(2 of 2), after it had ended: see warnings 1 and 2",
                "by interval 8 0 96 320 B in all, after it had ended 8 96 320 B",
                "ended again, with a model, the aggregator says",
            ],
        ),
        (
            a_training_with_losses,
            [],
            [
                "attempts begun anew 6 times (attempts 1 to 7); 5 of 20 answers were the same answer sent "
                "again: nothing new",
                "the same answers sent again 5",
                "or this site was stopped; by itself this is no sign of abuse",
            ],
        ),
        (
            noise_of_the_aggregator,
            ["central-noise"],
            [
                "WEAK PROTECTION = within the terms, but weaker than it looks 1. WEAK PROTECTION: The "
                "aggregator added the noise of session s1 itself, so it could read the sums before.",
                "masked: the aggregator could see sums over the parties without noise, as it added the",
            ],
        ),
        (sessions_of_equal_and_of_other_groups, [], ["s1 13 model as agreed", "s3 13 model as agreed"]),
        (
            forty_histograms_under_one_round,
            ["too-many"],
            [
                "40 times sums over groups of rows, by interval, where the terms allow 1.",
                "sums over groups of rows, by interval 40 1 1360",
                "at most 1 round from",
                "by itself this is no sign of abuse",
            ],
        ),
    ],
)
def test_ten_logs(write, due, said, path):
    write(path)
    assert warnings(path) == due
    text = " ".join(fedboost("audit", path).out.split())
    assert [words for words in said if words not in text] == []
    assert ("central-noise" in due) <= ("never this site's own numbers" not in text)


@pytest.mark.parametrize(
    "settings",
    [
        {"grow_policy": "lossguide", "max_leaves": 4, "max_depth": 6},
        {"grow_policy": "lossguide", "max_leaves": 4, "vote_top_k": 1},
        {"num_parallel_tree": 3, "sampling_method": "bootstrap"},
        {"objective": "reg:absoluteerror", "vote_top_k": 1},
        {"early_stopping_rounds": 1, "validation_fraction": 0.3, "rounds": 6, "eval_metric": "logloss"},
        {"protection": "plain", "party_metrics": True},
        {"ranges": [(-3, 3)] * 2, "noise": {"epsilon": 8.0, "delta": 1e-5, "method": "hist"}},
    ],
)
def test_no_kind_of_training_has_a_warning(settings, path):
    with AuditLog(path) as log:
        aggregator = train(log, "s1", *agreement(**settings))
    assert aggregator.phase == "done", aggregator.error
    assert warnings(path) == []


def test_an_old_log_of_a_training_has_no_warning_and_goes_on(path):
    old_logs.honest(path)
    assert warnings(path) == []
    before = len(read_log(path))
    a_training(path)
    assert len(read_log(path)) > before
    assert warnings(path) == []


@pytest.mark.parametrize("seed", [*range(24), 27, 113, REFRESHED + 3, CONTINUED + 1, NOISY + 2, NOISY + 5])
def test_faults_are_no_abuse(seed, tmp_path):
    world = LoggedWorld(seed, tmp_path)
    for log in world.play():
        assert warnings(log) == []


# ---- rule by rule -----------------------------------------------------------------------------------

ONE_TREE = ("RowsQuery", "StartQuery", "EndRoundQuery", "HistogramQuery", "HistogramQuery", "EndRoundQuery")


def honest(terms):
    """The answers of a session of one round and depth 2."""
    return [answer(terms, turn, what) for turn, what in enumerate(ONE_TREE, 1)]


def written(path, terms, releases, name="s1", **admission):
    with AuditLog(path) as log:
        log.admitted(name, terms, **admission)
        for release in releases:
            log.record(dataclasses.replace(release, session=name))


def changed(release, **settings):
    return dataclasses.replace(release, **settings)


ABUSES = {
    "other-question": lambda known: changed(known[4], attempt=2, question="ab" * 32),
    "other-position": lambda known: changed(known[4], attempt=2, position="ab" * 32),
    "other-roster": lambda known: changed(known[1], attempt=2, roster=("p0", "p1", "p2")),
    "too-many": lambda known: changed(known[5], turn=7),
}


@pytest.mark.parametrize(("kind", "allowed"), [("RowsQuery", 1), ("StartQuery", 1), ("SumsQuery", 0)])
def test_a_question_too_many_of_any_kind_is_enough(kind, allowed, path):
    terms, _ = agreement(rounds=4, max_depth=6)  # so that there is room for more questions in all
    written(path, terms, [answer(terms, turn, kind) for turn in range(1, allowed + 1)])
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(answer(terms, allowed + 1, kind))
    assert warnings(path) == ["too-many"]


def test_the_most_serious_warnings_come_first(path):
    terms, _ = agreement(rounds=1, **noisy("central"))
    written(path, terms, [answer(terms, 2, "SumsQuery")])
    group = terms.with_parties((*terms.parties, "p3"))
    written(path, group, [answer(group, turn, "SumsQuery") for turn in (2, 3)], "s2")
    assert warnings(path) == ["too-many", "similar-groups", "central-noise"]
    events = map(json.loads, fedboost("audit", path, "--json").out.splitlines())
    assert [event["kind"] for event in events if event["event"] == "warning"] == ["abuse", "check", "weak"]


def test_agreements_that_differ_in_much_are_told_in_short(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms))
    other = terms.changed(rounds=2, max_depth=3, seed=5, max_bin=16, reg_lambda=2.0, gamma=1.0, reg_alpha=1.0)
    written(path, other, honest(terms))
    text = " ".join(fedboost("audit", path).out.split())
    assert "rounds was 1, then 2; max_depth was 2, then 3; max_bin was 8, then 16;" in text
    assert "; and 2 more settings." in text
    terms_file(path, other.digest).unlink()
    assert "how they differ is not known" in " ".join(fedboost("audit", path).out.split())


@pytest.mark.parametrize("rule", ABUSES)
def test_one_answer_that_does_not_fit_is_enough(rule, path):
    terms, _ = agreement(4, rounds=1, on_loss="shrink")
    known = honest(terms)
    written(path, terms, known)
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(ABUSES[rule](known))
    assert warnings(path) == [rule]


def test_a_roster_that_the_terms_do_not_allow(path):
    terms, _ = agreement(4, rounds=1)
    last = changed(honest(terms)[-1], roster=("p0", "p1", "p2"))
    written(path, terms, [*honest(terms)[:-1], last])
    assert warnings(path) == ["small-roster"]
    path.unlink()
    written(path, terms.changed(on_loss="shrink"), [*honest(terms)[:-1], last])
    assert warnings(path) == []


def test_a_tree_cut_short_where_the_terms_let_the_roster_shrink(path):
    """The end of the tree comes in the place of its second histogram, without the party that was lost."""
    terms, _ = agreement(4, rounds=2, on_loss="shrink")
    known = honest(terms)
    end = changed(known[5], turn=5, attempt=2, roster=("p0", "p1", "p2"))
    written(path, terms, [*known[:5], end])
    assert warnings(path) == []
    path.unlink()
    written(path, terms.changed(on_loss="wait"), [*known[:5], end])
    assert warnings(path) == ["other-question", "other-roster", "small-roster"]


def test_another_answer_to_the_same_question(path):
    """A table that is read again with other rows gives the difference of the two sums: its changed rows."""
    terms, _ = agreement(rounds=1, **noisy("distributed"))
    known = answer(terms, 2, "SumsQuery", charge=Charge("a", 0.1))
    written(path, terms, [known, changed(known, attempt=2)])
    assert warnings(path) == []
    with AuditLog(path) as log:
        log.record(changed(known, attempt=3, charge=Charge("b", 0.1)))
    assert warnings(path) == ["other-answer"]


def test_a_first_attempt_that_is_not_the_first(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)], attempt=2)
    assert warnings(path) == ["first-attempt"]


def test_a_party_that_is_put_back_answers_in_an_attempt_of_before(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms)[:3])
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:3]], attempt=2)
    assert warnings(path) == []
    written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:4]], attempt=2)
    assert warnings(path) == ["attempt-again"]


@pytest.mark.parametrize("reason", ["", "another session began", "turn 5 asked after turn 1"])
def test_a_session_that_ended_goes_on(reason, path):
    """A living party forgets a session that it left, or that another one pushed aside."""
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms)[:3])
    with AuditLog(path) as log:
        log.ended("s1", reason)
    written(path, terms, [], attempt=2)
    assert warnings(path) == []  # nothing left
    with AuditLog(path) as log:
        log.record(changed(honest(terms)[3], attempt=2))
    assert warnings(path) == ["after-end"]


def test_an_aggregator_cannot_make_an_end_look_like_a_pause(path):
    terms, _ = agreement(rounds=1)
    for reason, paused, due in (("this site stopped", True, []), ("this site stopped", False, ["after-end"])):
        written(path, terms, honest(terms)[:3])
        with AuditLog(path) as log:
            log.ended("s1", reason, paused)
        written(path, terms, [changed(known, attempt=2) for known in honest(terms)[:4]], attempt=2)
        assert warnings(path) == due
        path.unlink()


def test_a_request_of_the_analyst_for_two_sessions(path):
    terms, _ = agreement(rounds=1)
    for name, request in (("s1", "ab" * 32), ("s2", "cd" * 32)):
        written(path, terms, honest(terms), name, analyst="anna", request=request)
    assert warnings(path) == []
    written(path, terms, honest(terms), "s3", analyst="anna", request="ab" * 32)
    assert warnings(path) == ["request-again"]


def test_terms_that_are_missing_or_changed(path):
    terms, _ = agreement(rounds=1)
    written(path, terms, honest(terms))
    file = terms_file(path, terms.digest)
    whole = file.read_bytes()
    assert warnings(path) == []
    file.write_bytes(whole.replace(b'"rounds":1', b'"rounds":9'))
    assert warnings(path) == ["terms"]
    assert "changed after it was written" in " ".join(fedboost("audit", path).out.split())
    file.unlink()
    assert warnings(path) == ["terms"]
    assert "No such file" in fedboost("audit", path).out
    file.write_bytes(whole)
    assert warnings(path) == []


@pytest.mark.parametrize("digest", ["\0", "../north", "f" * 5000])
def test_a_log_that_names_no_digest_is_warned_of(digest, path):
    written(path, agreement(rounds=1)[0], [])
    entry = read_log(path)[0]
    entry = entry.model_copy(update={"event": entry.event.model_copy(update={"terms": digest})})
    path.write_bytes(entry.model_copy(update={"hash": entry.due_hash}).line)
    assert warnings(path) == ["terms"]


def test_groups_that_differ_by_as_many_as_collude(path):
    first, _ = agreement(6, rounds=1, colluding=2)
    second = first.with_parties(("p0", "p1", "p2", "p3", "q4", "q5"))
    third = first.with_parties(("p0", "p1", "p2", "p3", "p4", "r5", "r6"))
    written(path, first, honest(first), "s1")
    written(path, second, honest(second), "s2")
    assert warnings(path) == []  # four differ, of whom two may collude
    written(path, third, honest(third), "s3")
    assert warnings(path) == ["similar-groups"]  # three
    for agreed in (first, third):
        terms_file(path, agreed.digest).unlink()
    assert warnings(path) == ["similar-groups", "terms", "terms"]  # s2's terms still say two
