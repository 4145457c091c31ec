"""Sessions of a site with a page: an analyst asks, an officer decides, over the network; and how it looks."""

import asyncio

import pytest
from site_page import SiteWithPage, Visitor, request_paths
from sites import bundles_of, consortium, fedboost, shared_out, terms, until

from fedboost.errors import SessionFailed
from fedboost.runtime.site.policy import COMMAND
from fedboost.runtime.tasks import terms_to_toml

THREE = ("north", "south", "east")


def offered(**settings):
    return terms(THREE, **{"protection": "masked", "min_child_weight": 2.5, **settings})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("consortium") / "keys", THREE)


async def failed(one, agreement):
    """The error by which a training ends."""
    with pytest.raises(SessionFailed) as end:
        await one.train(agreement)
    return str(end.value)


@pytest.mark.slow
async def test_an_officer_approves_what_was_asked_and_the_session_goes_through(tmp_path, bundles):
    tables = shared_out(3)
    others = {name: tables[name] for name in ("south", "east")}
    async with consortium(tmp_path / "one", others, bundles=bundles) as one:
        site = SiteWithPage(tmp_path / "north", one.address, tables["north"], bundle=bundles["north"])
        async with site.running():
            officer = await asyncio.to_thread(Visitor(site.address).log_in, site.token)
            assert f"run `{COMMAND} --analyst analyst` at that site" in await failed(one, offered())
            (path,) = request_paths(await asyncio.to_thread(officer.get, "/requests"))
            page = await asyncio.to_thread(officer.get, path)
            assert "analyst: gets the model and the metrics" in page
            assert offered().digest in page
            answer = await asyncio.to_thread(officer.decide, path, "approve", site.token)
            assert answer[0] == 303, answer
            training = await one.train(offered())
            assert len(training.history) == 3
            await until(lambda: site.node.watch.page_state.live.session is None)
            audit = await asyncio.to_thread(officer.get, "/audit")
            assert ("refused" in audit, "as agreed" in audit) == (True, True)
            left = await asyncio.to_thread(officer.get, "/audit/2")
            assert "signed by</dt><dd>analyst, the analyst" in left
            await approved_for_a_name_with_a_typing_error(one, site, officer)
            said = await refused_on_the_page(one, site, officer)
    assert said.count("a person at that site refused these terms") == 1


async def checked(one, agreement):
    """What `fedboost preflight` prints about terms."""
    path = one.folder / "terms.toml"
    path.write_text(terms_to_toml(agreement))
    keys = "--keys", one.bundles["analyst"].folder
    return (await asyncio.to_thread(fedboost, "preflight", path, "--aggregator", one.address, *keys)).out


async def approved_for_a_name_with_a_typing_error(one, site, officer):
    """The site reads whom its approval names, and the analyst does not."""
    agreement = offered(rounds=1)
    path = one.folder / "terms.toml"
    path.write_text(terms_to_toml(agreement))
    options = "--config", site.file, "--analyst", "analist", "--yes"
    assert (await asyncio.to_thread(fedboost, "approve", path, *options)).code == 0
    told = " ".join((await checked(one, agreement)).split())
    assert "its approval of these terms does not name analyst analyst; run `" in told
    assert f"`{COMMAND} --analyst analyst`" in told
    assert "analist" not in told
    (reason,) = site.log.named("terms checked")[-1]["reasons"]
    assert reason.endswith(f"run `{COMMAND} --analyst analyst` at that site: it names analist")
    assert "it names analist" in await asyncio.to_thread(officer.get, "/requests")


async def refused_on_the_page(one, site, officer):
    """Other terms, which were checked first, and refused."""
    other = offered(rounds=2)
    assert "north" in await checked(one, other)
    for found in request_paths(await asyncio.to_thread(officer.get, "/")):
        if other.digest in await asyncio.to_thread(officer.get, found):
            answer = await asyncio.to_thread(officer.decide, found, "refuse", site.token)
            assert answer[0] == 303
    return await failed(one, other)
