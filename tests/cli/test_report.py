"""`fedboost report` as a user types it, and its page in a browser."""

import re
import shutil
import subprocess
import zlib
from html import escape
from pathlib import Path

import pytest
from pyarrow import csv
from sites import fedboost, rows, shared_out, terms

from fedboost.runtime.local.simulation import simulate


@pytest.fixture(scope="module")
def model():
    return simulate(terms(rounds=4, validation_fraction=0.3), shared_out(3)).model


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A folder with m.json, rows.csv, few.csv and old.html."""
    monkeypatch.chdir(tmp_path)
    model.save("m.json")
    csv.write_csv(rows(), "rows.csv")
    csv.write_csv(rows().drop_columns(["dose"]), "few.csv")
    (tmp_path / "old.html").write_text("old")
    return tmp_path


def test_a_report_is_a_page(folder, model):
    end = fedboost("report", "m.json", "--data", "rows.csv", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    assert (folder / "r.html").read_text(encoding="utf-8") == model.report(data="rows.csv")
    assert "180 rows of rows.csv" in (folder / "r.html").read_text(encoding="utf-8")


def test_a_report_names_no_folder_of_this_machine(folder):
    end = fedboost("report", folder / "m.json", "--data", folder / "rows.csv", "--out", folder / "r.html")
    assert end.code == 0
    assert str(folder) not in (folder / "r.html").read_text(encoding="utf-8")


def test_a_floor_under_counts_is_the_analysts(folder, model):
    end = fedboost("report", "m.json", "--data", "rows.csv", "--min-count", "1", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    text = (folder / "r.html").read_text(encoding="utf-8")
    assert text == model.report(data="rows.csv", min_count=1)
    assert text != model.report(data="rows.csv")


def test_a_report_without_rows(folder, model):
    end = fedboost("report", "m.json", "--out", "r.html")
    assert (end.code, end.out, end.err) == (0, "", "")
    assert (folder / "r.html").read_text(encoding="utf-8") == model.report()


def test_undeclared_categories_are_noticed(folder):
    ward = ["z" if level == "a" else level for level in rows()["ward"].to_pylist()]
    csv.write_csv(rows().set_column(2, "ward", [ward]), "odd.csv")
    end = fedboost("report", "m.json", "--data", "odd.csv", "--out", "r.html")
    assert end.code == 0
    assert end.err.startswith("ward has ")
    assert "with a category nobody declared ('z', ...)" in end.err


REFUSED = {
    "no model": (("nowhere.json", "--out", "r.html"), "nowhere.json: cannot read the model: No such file"),
    "a table for a model": (("rows.csv", "--out", "r.html"), "rows.csv: "),
    "no such table": (("m.json", "--data", "no.csv", "--out", "r.html"), "no.csv: no such file"),
    "no such column": (
        ("m.json", "--data", "few.csv", "--out", "r.html"),
        "few.csv: column 'dose' is missing",
    ),
    "an older page": (
        ("m.json", "--out", "old.html"),
        "old.html: exists already; give another name, or --force",
    ),
    "over the model": (("m.json", "--out", "m.json", "--force"), "m.json: is read by this very command"),
    "over the rows": (
        ("m.json", "--data", "rows.csv", "--out", "rows.csv", "--force"),
        "is read by this very",
    ),
    "no such folder": (("m.json", "--out", "no/r.html"), "no/r.html: the directory"),
    "no page": (("m.json",), "--out"),
    "a query of nothing": (
        ("m.json", "--query", "SELECT 1", "--out", "r.html"),
        "--query is for the rows of --data",
    ),
    "a floor under nothing": (
        ("m.json", "--min-count", "1", "--out", "r.html"),
        "--min-count is for the rows",
    ),
    "no such keys": (("m.json", "--keys", "keys", "--out", "r.html"), "keys"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_reported_is_one_line(folder, arguments, said):
    before = {file: file.read_bytes() for file in folder.iterdir()}
    end = fedboost("report", *arguments)
    assert (end.code, end.out) == (2, "")
    assert end.err.startswith("fedboost: ")
    assert said in end.err
    assert end.err.count("\n") == 1
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_force_replaces_a_page(folder, model):
    assert fedboost("report", "m.json", "--out", "old.html", "--force").code == 0
    assert (folder / "old.html").read_text(encoding="utf-8") == model.report()


# ---- in a browser -----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
DARK = "--blink-settings=preferredColorScheme=0"
MEASURE = """<script>addEventListener("load", () => {{ const page = document.querySelector("iframe");
const inside = page.contentDocument.documentElement;
inside.querySelectorAll("details").forEach((each) => each.open = {opened});
document.title = [inside.scrollWidth, inside.clientWidth,
page.contentWindow.performance.getEntriesByType("resource").length].join(" ") }})</script>"""


def browse(page, folder, *options):
    """What chromium prints with these options, headless, at this page. It has no network but loopback."""
    common = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-pdf-header-footer")
    offline = ("--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'profile'}")
    command = [str(CHROMIUM), *common, *offline, *options, page.absolute().as_uri()]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


def picture(page, folder, *options):
    """A screenshot as PNG."""
    out = folder / "screen.png"
    browse(page, folder, f"--screenshot={out}", *options)
    return out.read_bytes()


def paper(png):
    """The colour of the first pixel."""
    parts = re.findall(rb"(?s)(.{4})IDAT", png)
    start = png.index(b"IDAT") + 4
    size = int.from_bytes(parts[0], "big")
    return tuple(zlib.decompressobj().decompress(png[start : start + size], 4)[1:4])


@pytest.fixture
def page(folder):
    """The report, with rows."""
    assert fedboost("report", "m.json", "--data", "rows.csv", "--out", "r.html").code == 0
    return Path("r.html")


@needs_chromium
@pytest.mark.slow
def test_a_page_is_light_or_dark_as_the_reader_has_it(page, folder):
    light, dark = (picture(page, folder, "--window-size=1100,900", *scheme) for scheme in ((), (DARK,)))
    assert paper(light) == (255, 255, 255)
    assert paper(dark) == (0x12, 0x17, 0x1D)


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("opened", ["true", "false"])
@pytest.mark.parametrize("width", [320, 500, 1100])
def test_a_page_fits_its_window_and_asks_for_nothing(page, folder, width, opened):
    text = escape(page.read_text(encoding="utf-8"))
    around = f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{text}"></iframe>'
    (folder / "around.html").write_text(around + MEASURE.format(opened=opened), encoding="utf-8")
    found = browse(folder / "around.html", folder, "--window-size=1200,900", "--dump-dom").decode()
    wide, window, requests = map(int, re.search("<title>(.*?)</title>", found)[1].split())
    assert width - 20 <= window <= width
    assert wide <= window
    assert requests == 0


@needs_chromium
@pytest.mark.slow
def test_what_is_folded_is_printed(page, folder):
    text = page.read_text(encoding="utf-8")
    closed = text.replace("::details-content", "::nothing")
    assert closed != text
    (folder / "closed.html").write_text(closed, encoding="utf-8")
    pages = []
    for name in ("r.html", "closed.html"):
        browse(folder / name, folder, f"--print-to-pdf={folder / 'r.pdf'}")
        pages.append(len(re.findall(rb"/Type /Page\b", (folder / "r.pdf").read_bytes())))
    assert pages[0] > pages[1] > 0
