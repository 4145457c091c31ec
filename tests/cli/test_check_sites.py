"""`fedboost preflight`: what each site has against terms, without a session."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import grpc
import pyarrow as pa
import pytest
from anything import ANYTHING
from consortia import channel_to
from raised import raised
from sites import PATIENCE, consortium, fedboost, rows, status_of, terms, until

from fedboost.errors import PeerError, SessionFailed
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import CHECK, SESSION, Trust
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator import analysts, limits
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.site import review
from fedboost.runtime.site import review as check_book
from fedboost.runtime.site.approval import read_past
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.backup import init_memory
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.tasks import terms_to_toml
from fedboost.version import VERSION
from fedboost.views import aggregator
from fedboost.wire.messages import (
    CheckReply,
    Objections,
    Review,
    SiteReply,
    decode_check_reply,
    decode_objections,
    encode_check_reply,
    encode_objections,
    encode_review,
)

THREE = ("north", "south", "east")
NAMED = {**ANYTHING, "analysts": ["analyst"]}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """The bundles of three parties, and of two analysts."""
    folder = tmp_path_factory.mktemp("consortium") / "keys"
    roles = {**dict.fromkeys(THREE, "party"), "analyst": "analyst", "stranger": "analyst"}
    for words in (["init-consortium"], ["aggregator"], *([role, name] for name, role in roles.items())):
        assert fedboost("keys", *words, "--folder", folder).code == 0
    roles["aggregator"] = "aggregator"
    return {name: read_bundle(folder / name, role) for name, role in roles.items()}


def reviewers_of(one):
    """The parties that have a stream for checks open, by name."""
    return one.server.checks._reviewers


async def check(one, agreed, name="analyst", *options):
    """The exit code and the output of the command."""
    path = one.folder / "terms.toml"
    path.write_text(terms_to_toml(agreed))
    keys = ("--keys", one.bundles[name].folder) if one.bundles else ("--insecure-loopback",)
    return await asyncio.to_thread(fedboost, "preflight", path, "--aggregator", one.address, *keys, *options)


async def replies(one, agreed, name="analyst"):
    """The exit code, and the answer of each site."""
    end = await check(one, agreed, name, "--json")
    assert end.err == "", end.err
    return end.code, {site["party"]: site for site in map(json.loads, end.out.splitlines())}


@asynccontextmanager
async def asked(folder, bundles, policies, tables=None):
    """A consortium with one party for each policy, all at hand for checks."""
    async with consortium(folder, {}, bundles=bundles) as one:
        for name, policy in policies.items():
            if "epsilon" in policy:  # a memory of what is spent is begun by hand
                config = {"party": name, "aggregator": one.address, "state": one.folder / name}
                init_memory(PartyConfig(**config, policy=policy))
            one.start_party(name, (tables or {}).get(name, rows()), state=name, policy=policy)
        await until(lambda: len(reviewers_of(one)) == len(policies))
        yield one


async def test_all_would_and_nothing_begins(tmp_path, bundles):
    agreed = terms(THREE, protection="masked")
    async with asked(tmp_path / "one", bundles, dict.fromkeys(THREE, NAMED)) as one:
        end, logs = await check(one, agreed), [kinds(one.store(name, name)) for name in one.nodes]
    assert (end.code, end.err) == (0, "")
    assert end.out.splitlines()[0].split() == ["north", "yes"]
    assert "\nall 3 sites would take part\nA check does not read rows; " in end.out
    assert not one.log.named("session begins")
    assert not one.log.named("session offered")
    assert logs == [["checked"]] * 3
    assert [event["would"] for event in one.log.named("terms checked")] == [True, True, True, 3]
    assert {event["analyst"] for event in one.log.named("terms checked")} == {"analyst"}


async def test_sites_are_asked_about_a_description(tmp_path, bundles):
    """By its own terms: what a training breaks may be no rule of a description, and the other way round."""
    policies = {"north": {**NAMED, "min_count": 40}, "south": {**NAMED, "max_depth": 2}}
    async with asked(tmp_path / "one", bundles, policies) as one:
        agreed = terms(policies, max_depth=5)
        training, description = [
            await check(one, agreed, "analyst", *options) for options in ((), ("--describe",))
        ]
    assert (training.code, description.code) == (1, 1)
    assert "max_depth = 2" in training.out
    assert "min_count" not in training.out
    assert "min_count = 40" in description.out
    assert "max_depth" not in description.out
    for end in (training, description):
        assert "\n1 of 2 sites would take part\n" in end.out


async def test_each_site_says_all_its_reasons(tmp_path, bundles):
    """Rules, columns, budget and sessions; and who is not here."""
    strict = {**NAMED, "max_depth": 2, "max_rounds": 2, "epsilon": 0.5, "delta": 1e-5, "max_sessions": 1}
    noise = {"epsilon": 2.0, "delta": 1e-5}
    columns = {"label": "y", "numeric": ["age", "dose", "height", "weight"], "label_range": [0, 1],
               "ranges": {name: [0, 100] for name in ("age", "dose", "height", "weight")}}  # fmt: skip
    agreed = terms([*THREE, "away"], columns=columns, noise=noise, protection="masked")
    policies = {"north": strict, "south": NAMED}
    async with asked(tmp_path / "one", bundles, policies) as one:
        (code, sites), end = await replies(one, agreed), await check(one, agreed)
    assert code == end.code == 1
    north, south = sites["north"], sites["south"]
    assert (north["answered"], north["would"]) == (True, False)
    for said in (
        "max_depth = 2",
        "max_rounds = 2",
        "epsilon 2",
        "'height' is missing",
        "'weight' is missing",
    ):
        assert any(said in reason for reason in north["reasons"]), said
    fix = "; if south does not have it, add it to columns.absent in the terms"
    assert south["reasons"] == [f"column {name!r} is missing{fix}" for name in ("height", "weight")]
    for name in ("east", "away"):
        assert sites[name]["answered"] is False
        assert sites[name]["reasons"] == ["it has never connected to this aggregator"]
    assert all(len(line) < 80 for line in end.out.splitlines())
    assert "\n0 of 4 sites would take part\n" in end.out


async def test_an_analyst_nobody_knows_is_told_what_a_refusal_tells(tmp_path, bundles):
    """One sentence, of the first rule, nothing of columns or rows; the same as an offer gets."""
    agreed = terms(["north"], max_depth=9, columns={"label": "y", "numeric": ["height"]})
    policy = {**NAMED, "max_depth": 2}
    async with asked(tmp_path / "one", bundles, {"north": policy}) as one:
        (code, sites), (_, known) = await replies(one, agreed, "stranger"), await replies(one, agreed)
    (reason,) = sites["north"]["reasons"]
    assert code == 1
    assert reason.startswith("its policy has analysts = [...], but the analyst is stranger; ")
    assert len(known["north"]["reasons"]) == 2
    assert one.log.named("terms checked")[0]["analyst"] == "stranger"


def kinds(audit):
    """The kinds of the entries of an audit log."""
    return [entry.event.kind for entry in read_log(audit)]


@pytest.mark.slow
async def test_checks_tell_nothing_of_a_value(tmp_path, bundles):
    """The attack: a few checks with `num_class` up and down found a site's largest label, and left no trace.
    Now every number of classes has the same answer, and each check is in the audit log."""
    labels = rows().append_column("stage", pa.array([n % 97 for n in range(rows().num_rows)]))
    settings = {"columns": {"label": "stage", "numeric": ["dose"]}, "objective": "multi:softprob"}
    numbers = (95, 97, 98)
    async with asked(tmp_path / "one", bundles, {"north": NAMED}, {"north": labels}) as one:
        agreed = [terms(["north"], num_class=n, eval_metric="mlogloss", **settings) for n in numbers]
        answers = [(await replies(one, each))[1]["north"] for each in (*agreed, agreed[0])]
        with pytest.raises(SessionFailed, match="rows do not fit the terms"):
            await one.train(agreed[0])
        assert [session.unmet for session in read_past(one.nodes["north"]._config).sessions] == [True]
        text = (await asyncio.to_thread(fedboost, "audit", one.store("north", "north"))).out
        entries, digests = read_log(one.store("north", "north")), [each.digest for each in agreed]
    assert all((answer["would"], answer["reasons"], answer["notes"]) == (True, [], []) for answer in answers)
    checked = [entry.event for entry in entries if entry.event.kind == "checked"]
    assert [(each.terms, each.analyst, each.would) for each in checked] == [
        (digest, "analyst", True) for digest in digests
    ]
    lines = text.splitlines()
    (heading,) = (number for number, line in enumerate(lines) if "sets of terms" in line)
    assert lines[heading + 1].split()[1:] == ["analyst", "3", "3"]


@pytest.mark.slow
async def test_an_analyst_checks_so_many_terms_a_day(tmp_path, bundles, monkeypatch):
    """Whoever asks more keeps neither others nor sessions away, and fills no log."""
    monkeypatch.setattr(check_book, "MAX_CHECKS_A_DAY", 2)
    days = ["2026-11-24"]
    monkeypatch.setattr(check_book, "today", lambda: days[0])
    async with asked(tmp_path / "one", bundles, {"north": NAMED}) as one:
        every = [terms(["north"], rounds=n) for n in (1, 2, 3, 1)]
        answers = [(await replies(one, each))[1]["north"] for each in every]
        answers.append((await replies(one, every[0], "stranger"))[1]["north"])
        await one.train(terms(["north"]))
        days[0] = "2026-11-25"
        answers.append((await replies(one, every[2]))[1]["north"])
        logged = kinds(one.store("north", "north")).count("checked")
    assert [answer["would"] for answer in answers] == [True, True, False, True, False, True]
    (reason,) = answers[2]["reasons"]
    assert reason.startswith(
        "it checks at most 2 different terms per analyst and day, and this limit is reached; try again "
        "tomorrow"
    )
    assert logged == 4


async def test_a_check_that_cannot_be_recorded_is_not_answered(tmp_path, bundles):
    policies = {"north": {**NAMED, "max_depth": 2}}
    async with asked(tmp_path / "one", bundles, policies) as one:
        one.store("north", "north").unlink()
        _, sites = await replies(one, terms(["north"], max_depth=9))
    assert sites["north"]["reasons"] == ["it cannot write its audit log; its own log says why"]
    assert "removed or replaced" in one.log.named("a preflight check was not answered")[0]["reason"]


async def test_a_flood_of_checks_has_a_share_of_a_thread(tmp_path, bundles, monkeypatch):
    """One check at a time is worked on, the next comes after a pause as long as it took, and of many reasons
    some are in the log."""
    assert [review.pause_after(seconds) for seconds in (0, 2, 60)] == [0.1, 2, 10]
    columns = {"label": "y", "numeric": [f"column {n}" for n in range(200)]}
    agreed, begun, go_on = terms(["north"], columns=columns), threading.Event(), threading.Event()
    async with asked(tmp_path / "one", bundles, {"north": NAMED}) as one:
        _, sites = await replies(one, agreed)
        reviewer = one.nodes["north"]._reviewer
        monkeypatch.setattr(reviewer, "objections", lambda review: begun.set() or go_on.wait(10))
        encoded = encode_review(Review(7, agreed.canonical()))
        first = asyncio.create_task(asyncio.to_thread(reviewer._answer, encoded))
        await asyncio.to_thread(begun.wait, 10)
        second = decode_objections(await asyncio.to_thread(reviewer._answer, encoded))
        go_on.set()
        with suppress(AttributeError):  # there was nothing to encode
            await first
    assert len(sites["north"]["reasons"]) == 64
    assert len(one.log.named("terms checked")[0]["reasons"]) == review.MAX_LOGGED
    assert (second.number, second.reasons) == (7, (review.LATER,))


def test_words_of_a_site_cannot_pose_as_another_line():
    """Escapes, and lines, of a site that does not go by the rules."""
    words = "no\x1b[2J\nsouth  yes"
    reply = CheckReply([SiteReply("no\x1brth", True, (words,))])
    answers = decode_check_reply(encode_check_reply(reply)).sites
    shown = "\n".join(aggregator.check(answers))
    assert "\x1b" not in shown
    assert r"no\x1b[2J\nsouth  yes" in shown


def test_a_check_is_no_request_for_a_session(bundles):
    """An aggregator cannot begin a session with what was signed for a check, nor the other way round."""
    agreed, signer = terms(["north"]), bundles["analyst"].signer
    trust = Trust(bundles["north"].roots, (), lambda: datetime.now(UTC))
    for signed, wanted in ((CHECK, SESSION), (SESSION, CHECK)):
        request = key_exchange.request(signer, agreed, bytes(32), 0, signed)
        assert key_exchange.check_request(trust, agreed, request, signed) == "analyst"
        with raised(PeerError, "signature-invalid"):
            key_exchange.check_request(trust, agreed, request, wanted)


async def test_a_site_believes_no_check_that_no_analyst_signed(tmp_path, bundles):
    agreed = terms(["north"])
    async with asked(tmp_path / "one", bundles, {"north": NAMED}) as one:
        reviewer = one.nodes["north"]._reviewer
        forged = Request(bytes(32), 0, bundles["south"].certificate, b"x")
        unsigned, forged = [
            reviewer.objections(Review(1, agreed.canonical(), request)) for request in (None, forged)
        ]
    assert unsigned.reasons == ("the terms are not signed by an analyst",)
    assert forged.reasons == ("the signature of 'south' is invalid",)


async def test_terms_of_another_version_are_a_reason(tmp_path):
    async with asked(tmp_path / "one", None, {"north": ANYTHING}) as one:
        found = one.nodes["north"]._reviewer.objections(Review(1, '{"new": 1}'))
    assert found.reasons[0].startswith(f"its fedboost version, {VERSION}, does not support these terms: ")


async def test_a_person_is_not_asked(tmp_path):
    async with asked(tmp_path / "one", None, {"north": {**ANYTHING, "approval": "ask"}}) as one:
        code, sites = await replies(one, terms(["north"]))
    assert code == 1
    assert sites["north"]["reasons"] == ['its policy has approval = "ask", but no one can be asked']


async def test_sites_that_cannot_answer_are_named(tmp_path, monkeypatch):
    """One of an older version has no stream for checks; one takes too long."""
    monkeypatch.setattr(analysts, "SITE_SECONDS", 0.05)
    async with asked(tmp_path / "one", None, {"north": ANYTHING, "south": ANYTHING}) as one:
        del reviewers_of(one)["north"]
        reviewers_of(one)["south"].outgoing.put = lambda data: None
        code, sites = await replies(one, terms(["north", "south"]))
    assert code == 1
    assert sites["north"]["reasons"] == [
        "it runs an older fedboost version, which does not support checks; update fedboost there"
    ]
    assert sites["south"]["reasons"] == ["it did not answer within 0.05 s"]


async def test_a_party_goes_on_at_an_aggregator_without_checks(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "ADVISE", f"/{channel.SERVICE}/Newer")
    async with consortium(tmp_path / "one", {"north": rows()}) as one:
        model, log = (await one.train(terms(["north"]))).model, one.log
    assert model.rounds
    assert len(log.named("at hand")) == 1


async def test_only_so_many_checks_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(analysts, "MAX_CHECKS", 0)
    async with asked(tmp_path / "one", None, {"north": ANYTHING}) as one:
        end = await check(one, terms(["north"]))
    assert (end.code, end.out) == (2, "")
    assert end.err == "fedboost: 0 checks are already in progress; try again later\n"
    assert one.log.named("check refused")


@pytest.mark.slow
async def test_no_analyst_takes_all_checks(tmp_path, bundles, monkeypatch):
    """While a party does not answer the checks of one analyst, those of another are answered."""
    agreed = terms(["north"])
    async with asked(tmp_path / "one", bundles, {"north": NAMED}) as one:
        reviewer = one.nodes["north"]._reviewer
        answer, go_on = reviewer._answer, threading.Event()
        monkeypatch.setattr(reviewer, "_answer", lambda data: go_on.wait(PATIENCE) and answer(data))
        first = [asyncio.create_task(check(one, agreed)) for _ in range(analysts.MAX_CHECKS_OF_ONE)]
        await until(lambda: sum(one.server.checks._open.values()) == 2)
        third = await check(one, agreed)
        other = asyncio.create_task(check(one, agreed, "stranger"))
        await until(lambda: sum(one.server.checks._open.values()) == 3)
        go_on.set()
        third, codes, other = third, [end.code for end in await asyncio.gather(*first)], (await other).code
    assert third.err == "fedboost: you already have 2 checks in progress; try again later\n"
    assert (codes, other) == ([0, 0], 1)


async def test_a_party_may_not_check_terms(tmp_path, bundles):
    async with asked(tmp_path / "one", bundles, {"north": NAMED}) as one:
        end = await check(one, terms(["north"]), "south")
    assert end.code == 2
    assert "is the bundle of a party; use an analyst's" in end.err


async def test_the_analyst_of_an_offer_is_in_log_and_audit(tmp_path, bundles):
    """Of one that is refused, too."""
    policy = {**ANYTHING, "analysts": ["marie"]}
    async with asked(tmp_path / "one", bundles, {"north": policy}) as one:
        with pytest.raises(SessionFailed, match="analysts"):
            await one.train(terms(["north"]))
        end = fedboost("audit", one.store("north", "north"))
    assert "signed by    analyst, the analyst" in end.out
    for event in ("session offered", "session begins", "session failed"):
        assert one.log.named(event)[0]["analyst"] == "analyst", event


async def test_a_party_that_answers_what_nobody_asked_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "UNWANTED_SAVED", 0.1)
    monkeypatch.setattr(limits, "UNWANTED_PER_SECOND", 0.0)
    async with consortium(tmp_path / "one", {}) as one, channel_to(one) as opened:
        metadata = ((channel.PARTY_KEY, b"odd"), *channel.VERSIONS)
        call = opened.stream_stream(channel.ADVISE)(metadata=metadata)
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for number in range(8):  # the first six are let pass
                await call.write(encode_objections(Objections(number, ("no",))))
        (code, details), reviewers = await status_of(call), reviewers_of(one)
    assert code == grpc.StatusCode.DATA_LOSS
    assert details == "it keeps sending answers that were not requested"
    assert reviewers == {}
