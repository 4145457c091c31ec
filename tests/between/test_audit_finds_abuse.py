"""From `fedboost audit` alone a reader finds which logs are of sessions that were abused: it warns of them,
and of no others, however many parties were lost, restarted and asked again in those."""

import dataclasses
import os
import re

import numpy as np
import pytest
from audit_logs import AuditLog
from faults import CONTINUED, NOISY, REFRESHED, STEPS_OF_FAULTS, World
from inprocess import session_of, shard_of, sites_of
from logged import DRAW, ROWS, WITH_NOISE, X, agreement, answer, warnings
from sites import fedboost

from fedboost.boosting.programs import boosting, private
from fedboost.errors import Refused
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits, TransientMemory
from fedboost.runtime.site.audit import read_log

Y = (X[:, 0] + DRAW.normal(size=ROWS) > 0).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p0.audit.jsonl"


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
    program = boosting.train if terms.noise is None else private.train
    aggregator = session_of(terms, sites, program, name=name)
    log.ended(name, aggregator.ends["p0"].ended or "")
    return aggregator


class LoggedWorld(World):
    """A session with faults whose parties keep audit logs, as the node does: a party that forgets was killed,
    and writes no end."""

    def __init__(self, seed, folder):
        super().__init__(seed)
        self.folder = folder
        self.logs = {name: AuditLog(self.path(name)) for name in self.sites}
        self.sites = {name: self._logged(name, site) for name, site in self.sites.items()}
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        self.closed = []

    def path(self, name):
        """The store of a party, in a folder of its own."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name / f"{name}.jsonl"

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
        return [log for name in self.sites if (log := self.path(name)).exists()]


def a_training(path):
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement()).phase == "done"


def a_training_with_losses(path):
    """A party that is lost, killed and restarted, and an aggregator that is killed."""
    LoggedWorld(58, path.parent).play()
    (path.parent / "p2" / "p2.jsonl").rename(path)
    attempts = {entry.event.attempt for entry in read_log(path) if entry.event.kind == "released"}
    begun = [entry for entry in read_log(path) if entry.event.kind == "admitted"]
    assert len(attempts) > 2
    assert len(begun) > 1


def noise_of_the_sites(path):
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(**WITH_NOISE)).phase == "done"


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
            raise Refused("test", "site p0 refuses: its policy has max_depth = 2")
        return Limits()

    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(max_depth=3), permit=permit).phase == "failed"
        assert train(log, "s2", *agreement(), permit=permit).phase == "done"


def a_group_less_one(path):
    """A training of p0 to p3 and one of p0 to p2, at a site whose memory was deleted between: the difference
    of the two row counts is that of p3."""
    with AuditLog(path) as log:
        assert train(log, "s1", *agreement(4)).phase == "done"
        assert train(log, "s2", *agreement(3)).phase == "done"


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "due", "said"),
    [
        (
            a_training,
            [],
            [
                "No warnings: everything that left this site is allowed by the agreed terms.",
                "signed by no analyst's signature (connections without keys)",
                "how many rows lie in each column interval 3 5 868",
                "with sums over groups of rows, by interval 2 3 72 304 B",
                "error of the model, summed over all rows 1 3 2",
            ],
        ),
        (
            one_name_under_two_terms,
            ["other-terms"],
            [
                "1. ABUSE? 2 different terms were run under one session name, s1: seed was 1, then 2.",
                "Session s1 (1 of 2): see warning 1",
                "Session s1 (2 of 2): see warning 1",
            ],
        ),
        (noise_of_the_sites, [], ["each site added a share of it", "privacy epsilon 4 was spent"]),
        (
            a_group_less_one,
            ["similar-groups"],
            [
                "1. CHECK Session s1 had p3, session s2 did not. Subtracting one result from the other gives "
                "only the totals of p3",
                "This was not intended if p3 dropped out; otherwise p3 was singled out. Ask the analyst.",
                "As operator of this site, list the parties to train with in `parties` of [policy].",
            ],
        ),
        (
            a_refusal_and_a_training,
            [],
            ["s1 0 refused nothing sent", "s2 10 model as agreed", "max_depth = 2 sent nothing"],
        ),
        (
            a_training_with_losses,
            [],
            [
                "attempts restarted 6 times (attempts 1 to 7); 5 of 16 answers repeated an "
                "earlier one: nothing new",
                "the same answers sent again 5",
                "or this site was stopped; by itself, this is not a sign of abuse",
            ],
        ),
        (sessions_of_equal_and_of_other_groups, [], ["s1 10 model as agreed", "s3 10 model as agreed"]),
        (
            forty_histograms_under_one_round,
            ["too-many"],
            [
                "sums over groups of rows, by interval (40 times, but the terms allow only 1).",
                "sums over groups of rows, by interval 40 1 1360",
                "at most 1 round from",
                "by itself, this is not a sign of abuse",
            ],
        ),
    ],
)
def test_eight_logs(write, due, said, path):
    write(path)
    assert warnings(path) == due
    text = " ".join(fedboost("audit", path).out.split())
    text = re.sub(r" 20\d\d-\d\d-\d\d \d\d:\d\d(?= )", "", text)  # of the table of sessions
    assert [words for words in said if words not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"grow_policy": "lossguide", "max_leaves": 4, "max_depth": 6},
        {"grow_policy": "lossguide", "max_leaves": 4, "vote_top_k": 1},
        {"num_parallel_tree": 3, "sampling_method": "bootstrap"},
        {"objective": "reg:absoluteerror", "vote_top_k": 1},
        {"early_stopping_rounds": 1, "validation_fraction": 0.3, "rounds": 6, "eval_metric": "logloss"},
        {"protection": "plain", "party_metrics": True},
        {"ranges": [(-3, 3)] * 2, "noise": {"epsilon": 8.0, "delta": 1e-5}},
    ],
)
def test_no_kind_of_training_has_a_warning(settings, path):
    with AuditLog(path) as log:
        aggregator = train(log, "s1", *agreement(**settings))
    assert aggregator.phase == "done", aggregator.error
    assert warnings(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(12), 27, 113, REFRESHED + 3, CONTINUED + 1, NOISY + 2, NOISY + 5])
def test_faults_are_no_abuse(seed, tmp_path):
    world = LoggedWorld(seed, tmp_path)
    for log in world.play():
        assert warnings(log) == []
