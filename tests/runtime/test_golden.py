"""Golden digests of what people and scripts read: results as JSON, lines of audit logs, pages. What differs
from run to run is masked, and numbers in JSON have seven digits. A text that changed is written to a file;
`python tests/runtime/test_golden.py FOLDER` writes all of them as they are now, and prints the digests.
"""

import contextlib
import json
import re
import sys
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from columns_apart import LAYOUTS, matched, pooled, scattered, terms_of
from console_facts import ended, facts
from fixed import fixed_randomness, short, table_of_digests
from memories import noisy
from site_page import SiteWithPage, Visitor, request_paths
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms

import fedboost as fb
from fedboost.results.site import ChargedRelease, SiteBudget, Spent
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.tasks import terms_to_toml
from fedboost.version import VERSION
from fedboost.views import aggregator as pages
from fedboost.views import site as site_pages
from fedboost.views.aggregator import openapi
from fedboost.views.approval import summary
from fedboost.views.as_html import ICON, SCRIPT, SERVED_STYLE, refused, served_page
from fedboost.views.site import Reader
from tests.terms.test_golden import SETTINGS as KINDS_OF_TERMS
from tests.terms.test_golden import terms_of as terms_of_kind

pytestmark = pytest.mark.slow
TABLE = rows(900, seed=4)
CLASSES = {"objective": "multi:softprob", "num_class": 2}
NUMBERS = {"columns": {"label": "age", "numeric": ["dose"], "categorical": {"ward": ["a", "b", "c"]}}}
NUMBERS |= {"objective": "reg:squarederror"}
SECRETS = {"time", "hash", "previous", "session", "request", "begin", "end"}
"""Keys whose texts differ from run to run."""
MEASURED = re.compile(r"seconds|stages")
"""Keys of what a clock measured."""
DATES = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?Z?)?")
RANDOM = re.compile(r"session-[0-9a-f]{16}|127\.0\.0\.1:\d+|(?<=/requests/)\w+")
HASHES = re.compile(r'(?<=value=")[\w-]{20,}(?=")|\b[0-9a-f]{64}\b|(?<=Session )[0-9a-f]{8}')
"""On the pages of a site: keys of forms, the hash of the log's end, and of sessions."""


# ---- masks ----------------------------------------------------------------------------------------------


def plain(value):
    """A value of JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {key: _of_key(key, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _of_key(key, value):
    if MEASURED.search(key):
        return "MEASURED"
    return "SECRET" if key in SECRETS and value else plain(value)


def as_text(*values):
    """JSON with sorted keys, a value a line."""
    return "\n".join(json.dumps(plain(value), sort_keys=True, default=str) for value in values)


def masked(page):
    """A page without its version, dates, names of sessions and requests, and addresses."""
    return RANDOM.sub("RANDOM", DATES.sub("DATE", page.replace(VERSION, "VERSION")))


# ---- sessions -------------------------------------------------------------------------------------------


@cache
def trained(**settings):
    """A training of three parties, each round of which took half a second."""
    with fixed_randomness():
        agreed = terms(**{"max_bin": 64, "rounds": 4, **settings})
        result = fb.simulate(fb.Terms.read(agreed.model_dump()), shared_out(3, TABLE))
    return replace(result, history=[{**row, "seconds": 0.5} for row in result.history])


def counted():
    return trained(reference=True).model


@cache
def evaluation():
    return fb.evaluate(counted(), shared_out(3, TABLE), by=["ward"], by_site=True)


@cache
def drift():
    place = TABLE.schema.get_field_index("age")
    moved = TABLE.set_column(place, "age", pa.array(TABLE["age"].to_numpy() + 12))
    return fb.drift(counted(), shared_out(3, moved))


@cache
def description():
    return fb.describe(terms(), shared_out(3, TABLE))


def noisy_description():
    with fixed_randomness():
        return fb.describe(noisy(3.0), shared_out(3, TABLE)).summary


def tuned():
    tuning = fb.tune(terms(rounds=9), shared_out(3, TABLE), trials=5)
    return as_text(
        {"metric": tuning.metric, "best": tuning.best, "terms": tuning.terms.digest},
        *tuning.summary["trials"],
    )


def simulated_apart():
    """A training of parties with different columns: its parts' JSON, and what an analyst is told."""
    tables, _ = scattered(LAYOUTS["three holders"], pooled(200))
    with fixed_randomness():
        result = fb.simulate(matched(LAYOUTS["three holders"], model="parties", min_common_rows=20), tables)
    texts = (json.loads(part.to_bytes()) for _, part in sorted(result.party_models.items()))
    return as_text(result.history, result.traffic, *texts)


# ---- commands -------------------------------------------------------------------------------------------


def command(*arguments, write=None):
    """What a command says as JSON, masked, or what it wrote."""
    end = fedboost(*arguments)
    assert end.code == 0, end.err
    if write is not None:
        return Path(write).read_text()
    return as_text(*map(json.loads, end.out.splitlines()))


def written(agreed=None, model=None):
    """Write the files that commands read into the present folder."""
    csv.write_csv(TABLE, "all.csv")
    Path("terms.toml").write_text(terms_to_toml(terms() if agreed is None else agreed))
    (counted() if model is None else model).save("m.json")


def in_files(*arguments, agreed=None, model=None, write=None):
    """The same of a command that reads such files."""

    def run():
        written(agreed, model and model())
        with fixed_randomness():
            return command(*arguments, write=write)

    return run


def estimated(*arguments, agreed=None):
    def run():
        Path("t.toml").write_text(terms_to_toml(agreed or terms(["north", "south", "east", "west"])))
        return command("estimate", "t.toml", "--rows", 2000, "--json", *arguments)

    return run


# ---- audit logs, sites ----------------------------------------------------------------------------------


def over_sockets(agreed, tables):
    """The model of a training whose parties keep audit logs here, and keys where it hides anything."""

    async def scenario():
        bundles = bundles_of(Path("keys"), tables) if agreed.protection.hides or agreed.blocks else None
        async with consortium(Path("c"), {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table)
            return (await one.train(agreed.with_parties(tables))).model

    return in_time(scenario())


def audited(agreed, tables):
    """The audit log of the first party of a training over sockets, and what the command says of it."""
    over_sockets(agreed, tables)
    first, *_ = tables
    store = Path(f"c/state/{first}/memory.sqlite")
    lines = (json.loads(entry.line) for entry in read_log(store))
    return f"{as_text(*lines)}\n{command('audit', store, '--json')}"


def audited_apart():
    """In the order of secrets rows are asked for, and so all questions behind."""
    layout = LAYOUTS["two holders"]
    text = audited(matched(layout, min_common_rows=20), scattered(layout, pooled(200))[0])
    return re.sub(r'"(position|question)": "\w+"', r'"\1": "SECRET"', text)


def verified():
    """What is said of the signatures of a training over sockets."""
    over_sockets(terms(protection="masked"), shared_out(3)).save("m.json")
    return command("verify", "m.json", "--consortium", "keys/analyst/consortium.pem", "--json")


served = partial(served_page, pages.CONSOLE)


def budget_of_site():
    """The page of what sessions with noise spent."""
    counts = {"sessions": 3, "took_part": 2, "never_began": 1, "with_noise": 2, "releases": 12}
    spent = Spent(dataset="north", own=True, **counts, cost=0.0625, spent=1.25, budget=3.0, left=1.75)
    charges = [
        ChargedRelease(session=f"session-{n}", release="ab" * 32, at=f"2026-01-0{n}T10:00:00Z", epsilon=n / 8)
        for n in (1, 2)
    ]
    known = {"name": "north", "max_sessions": 20, "epsilon": 3.0, "delta": 1e-5}
    document = site_pages.budget(SiteBudget(**known, datasets=[spent], charges=charges))
    return site_pages.page("/budget", document, Reader("jo", True, "ab" * 32))


def pages_of_site():
    """The pages of a site, one after the other, after a training; other terms were asked for once."""
    over_sockets(terms(), shared_out(2, TABLE))
    more = 'state = "../c/state"\n[policy]\nmax_depth = 4\n'
    site = SiteWithPage(Path("site"), "127.0.0.1:1", TABLE, more)
    with site.in_thread():
        site.asked_for(terms(["north", "south"], max_depth=9))
        visitor = Visitor(site.address).log_in(site.token)
        asked = request_paths(visitor.get("/requests"))
        paths = "/", "/requests", *asked, "/policy", "/budget", "/audit", "/audit/1", "/style.css"
        return HASHES.sub("HASH", "\n".join(map(visitor.get, paths)))


TEXTS = {
    "evaluation": lambda: as_text(evaluation().summary, evaluation().traffic),
    "evaluation of classes": lambda: as_text(fb.evaluate(trained(**CLASSES).model, [TABLE]).summary),
    "evaluation of numbers": lambda: as_text(
        fb.evaluate(fb.simulate(terms(**NUMBERS), [TABLE]).model, [TABLE]).summary
    ),
    "description": lambda: as_text(description().summary, description().advice, description().traffic),
    "description with noise": lambda: as_text(noisy_description()),
    "drift": lambda: as_text(drift().summary, drift().traffic),
    "tuning": tuned,
    "comparison": in_files("compare", "terms.toml", "--data", "all.csv", "--site", "site", "--json"),
    "privacy plan": in_files("privacy", "plan", "terms.toml", "--rows", 8000, "--json", agreed=noisy()),
    "privacy card": in_files(
        "report", "m.json", "--privacy", "--json", model=lambda: fb.simulate(noisy(), shared_out(3)).model
    ),
    "estimate": estimated("--rtt", 20, "--bandwidth", 100),
    "estimate of columns": estimated(agreed=terms_of(LAYOUTS["two holders"]).with_parties(["bank", "telco"])),
    "training": in_files("simulate", "terms.toml", "--data", "all.csv", "--site", "site", "--json"),
    "training with masks": in_files(
        *("simulate", "terms.toml", "--data", "all.csv", "--site", "site", "--out", "new.json", "--json"),
        agreed=terms(protection="masked", party_metrics=True, validation_fraction=0.2),
    ),
    "training of columns": simulated_apart,
    "importance": in_files("explain", "m.json", "--json"),
    "signatures": verified,
    "model": lambda: as_text(json.loads(counted().to_bytes())),
    "words of terms": lambda: "\n".join(summary(terms_of_kind(name)) for name in KINDS_OF_TERMS),
    "files of terms": lambda: "\n".join(terms_to_toml(terms_of_kind(name)) for name in KINDS_OF_TERMS),
    "status": lambda: as_text(facts().status.summary),
    "audit log": lambda: audited(terms(), shared_out(2)),
    "audit log with masks": lambda: audited(terms(protection="masked"), shared_out(3)),
    "audit log of columns": audited_apart,
    "page of a training": lambda: trained(validation_fraction=0.3).report(data=TABLE),
    "page of a model": lambda: counted().report(),
    "page of a model of classes": lambda: trained(**CLASSES).model.report(data=TABLE),
    "page of an evaluation": lambda: evaluation().report(),
    "page of a drift": lambda: drift().report(),
    "page of a description": lambda: description().report(),
    "page of a comparison": in_files(
        *("compare", "terms.toml", "--data", "all.csv", "--site", "site", "--seeds", 1),
        *("--report", "c.html"),
        write="c.html",
    ),
    "console, overview": lambda: served("/", pages.overview(facts()), caller="marie ", live=True),
    "console, sites": lambda: served("/sites", pages.sites(facts()), live=True),
    "console, sessions": lambda: served("/sessions", pages.sessions(facts()), live=True),
    "console, session": lambda: served("/sessions/session-1", pages.ended_session(ended())),
    "console, openapi": lambda: as_text(openapi()),
    "console, refused": lambda: refused(pages.CONSOLE, 401, "no token"),
    "console, style and script": lambda: SERVED_STYLE + ICON + SCRIPT,
    "site, budget": budget_of_site,
    "pages of a site": pages_of_site,
}
GOLDEN = {
    "evaluation": "fef8aaa1efc21714",
    "evaluation of classes": "0cab8bb3401e874a",
    "evaluation of numbers": "bfec8d692cc34395",
    "description": "39c2e2f8875e8567",
    "description with noise": "a624d78895aabf59",
    "drift": "8f928c68af062cce",
    "tuning": "0e20850973a15c92",
    "comparison": "0519490dbd84cd62",
    "privacy plan": "cc9b8f8910243e07",
    "privacy card": "3645affa27bdb192",
    "estimate": "5d37f426d248443f",
    "estimate of columns": "d6e2a154ae3fe393",
    "training": "f2b2d81006c7de9e",
    "training with masks": "05a036ccf491fd2b",
    "training of columns": "144ebbee3fbbafc9",
    "importance": "4a6aeb2cb56019f9",
    "signatures": "cf2f3b6c7a1349c6",
    "model": "984ad57c0df3bfc0",
    "words of terms": "24876c26828a21a0",
    "files of terms": "3f0e2f081ed7aa7c",
    "status": "434ce71150366f11",
    "audit log": "6df5c3b101c0681f",
    "audit log with masks": "1f0c611c197e661b",
    "audit log of columns": "76af6aa134bf97a3",
    "page of a training": "2a471438f1880815",
    "page of a model": "e6eac817e0094778",
    "page of a model of classes": "524a8cb2ade983dd",
    "page of an evaluation": "58de5ebd6417158e",
    "page of a drift": "e5f1a603eaf64549",
    "page of a description": "d1a69dd20b1808e3",
    "page of a comparison": "9c727d6ab149b6c6",
    "console, overview": "4197037a96e38ed7",
    "console, sites": "cf94c30c3535a177",
    "console, sessions": "2e5fe9a908b81ade",
    "console, session": "306dfa3d3be2f72d",
    "console, openapi": "37b8ac80ffe7db50",
    "console, refused": "898776ab17dc516e",
    "console, style and script": "0f18dadeadc45909",
    "site, budget": "ecce722a5b622b25",
    "pages of a site": "89fc334ebaebb504",
}


def text_of(name, folder):
    """The text of this name, made in an empty folder."""
    with contextlib.chdir(folder):
        return masked(TEXTS[name]().replace(str(folder), "FOLDER"))


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_they_were(name, tmp_path):
    text, changed = text_of(name, tmp_path), tmp_path / "changed.txt"
    changed.write_text(text, encoding="utf-8")
    assert short(text) == GOLDEN[name], f"{name!r} changed, see {changed}"


if __name__ == "__main__":
    for name in TEXTS:
        with tempfile.TemporaryDirectory() as folder:
            text = text_of(name, folder)
        table_of_digests([(name, short(text))])
        for kept in sys.argv[1:]:
            Path(kept, f"{name}.txt").write_text(text, encoding="utf-8")
