"""Pages in the system's Chromium, headless, driven by playwright: what a reader sees, prints and loads.

A tab asks for nothing beyond its own origin (a file: beyond that file): other requests are refused and kept
in `Tab.foreign`. The page's own content security policy is in force, but for `Tab.faults`, which puts
axe-core into a tab of its own. Playwright runs in a thread of its own, so that tests may have an event loop.

Screenshots and PDFs are also written to the folder FEDBOOST_SCREENSHOTS, if it is set, for a person to see.
"""

import os
import re
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60.0
"""Seconds for which one step in a page is waited for."""
OFFLINE = ("--proxy-server=127.0.0.1:9",)
"""No network but loopback, whatever Chromium itself would ask for."""
GRAVE = "serious", "critical"
DARK, LIGHT = "dark", "light"
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true })"
WIDTHS = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


def missing():
    """The reason why no page can be opened here; empty if it can."""
    if CHROMIUM is None:
        return "chromium is not installed (apt-get install chromium)"
    lacks = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
    return f"{' and '.join(lacks)} not installed (pip install fedboost[dev])" if lacks else ""


class Tab:
    """A page at one address. foreign: addresses beyond its origin that it asked for, all refused; asked: of
    its own origin; errors: what its scripts threw, and what its content security policy refused."""

    def __init__(self, browser, address, width, height, scheme, headers, bypass_csp):
        self._browser, self.address = browser, str(address)
        self.asked, self.foreign, self.errors = [], [], []
        self._options = {
            "viewport": {"width": width, "height": height},
            "color_scheme": scheme,
            "extra_http_headers": headers,
            "bypass_csp": bypass_csp,
            "service_workers": "block",
            "reduced_motion": "reduce",
        }
        browser.do(self._open)

    def _open(self, chromium):
        self._context = chromium.new_context(**self._options)
        self._context.set_default_timeout(PATIENCE * 1000)
        self._context.route("**/*", self._route)
        self.page = self._context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.response = self.page.goto(self.address, wait_until="load")

    def _note(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _route(self, route):
        url = route.request.url
        own = _origin(url) == _origin(self.address)
        (self.asked if own else self.foreign).append(url)
        if own:
            route.continue_()
        else:
            route.abort()

    def do(self, step):
        """What a function of the page of playwright returns, called in playwright's thread."""
        return self._browser.do(lambda _: step(self.page))

    def run(self, script):
        """The value of a script in the page."""
        return self.do(lambda page: page.evaluate(script))

    def open_all(self):
        """Open whatever is folded."""
        self.run(OPEN)

    def widths(self):
        """The width of the content, and of the window, in pixels: wider content must be scrolled sideways."""
        return tuple(self.run(WIDTHS))

    def screenshot(self, name, whole=False):
        """The window as PNG, or the whole page. name: of the file that is kept for a person."""
        return _kept(f"{name}.png", self.do(lambda page: _png(page, whole)))

    def keep(self, name):
        """Keep a screenshot of the whole page for a person, if one asks for it."""
        if os.environ.get("FEDBOOST_SCREENSHOTS"):
            self.screenshot(name, whole=True)

    def printed(self, name):
        """The page as a PDF on paper of A4. name: of the file that is kept for a person."""
        return _kept(f"{name}.pdf", self.do(lambda page: page.pdf(format="A4", prefer_css_page_size=True)))

    def check(self, name, axe=True):
        """The page is light or dark as the reader has it, fits its window with all opened, asks nobody else
        for anything, and has no grave fault. name: of the file that is kept for a person."""
        self.keep(f"{name}-whole")
        shown = paper(self.screenshot(name))
        assert shown == (255, 255, 255) if self._options["color_scheme"] == LIGHT else max(shown) < 60, name
        self.open_all()
        wide, window = self.widths()
        assert wide <= window, name
        assert (self.foreign, self.errors) == ([], []), name
        assert not axe or self.faults() == [], name

    def faults(self):
        """What axe-core finds of serious or critical impact in a tab like this one, with all opened: a line
        each."""
        options = {**self._options, "bypass_csp": True}
        size, scheme = options["viewport"], options["color_scheme"]
        address, headers = self.address, options["extra_http_headers"]
        with self._browser.tab(address, size["width"], size["height"], scheme, headers, True) as other:
            other.open_all()
            return other.do(_grave)

    def close(self):
        """Close the tab."""
        self._browser.do(lambda _: self._context.close())


class Browser:
    """One Chromium, with a profile of its own for each tab."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, "browser")

    def __enter__(self):
        try:
            self._thread.submit(self._start).result()
        except BaseException:
            self._thread.shutdown()
            raise
        return self

    def _start(self):
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self._chromium = self._playwright.chromium.launch(executable_path=CHROMIUM, args=OFFLINE)
        except BaseException:
            self._playwright.stop()
            raise

    def __exit__(self, *_):
        self._thread.submit(self._stop).result()
        self._thread.shutdown()

    def _stop(self):
        try:
            self._chromium.close()
        finally:
            self._playwright.stop()

    def do(self, step):
        """What a function of the browser of playwright returns, called in playwright's thread."""
        return self._thread.submit(step, self._chromium).result()

    @contextmanager
    def tab(self, address, width=1100, height=900, scheme=LIGHT, headers=None, bypass_csp=False):
        """A tab at a file, or at http://127.0.0.1:port/. headers: sent with every request of the tab."""
        where = address.absolute().as_uri() if isinstance(address, Path) else address
        tab = Tab(self, where, width, height, scheme, headers, bypass_csp)
        try:
            yield tab
        finally:
            tab.close()


def _origin(url):
    """What a page at this address may ask for: its own file, or its scheme, host and port."""
    parts = urlsplit(url)
    return (parts.scheme, parts.path) if parts.scheme == "file" else (parts.scheme, parts.netloc)


def _grave(page):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in GRAVE
    ]


def _kept(name, content):
    folder = os.environ.get("FEDBOOST_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_bytes(content)
    return content


def _png(page, whole):
    """A screenshot; of a busy machine Chromium says now and then that it cannot make one."""
    from playwright.sync_api import Error

    for _ in range(2):
        try:
            return page.screenshot(full_page=whole)
        except Error as error:
            if "Unable to capture screenshot" not in str(error):
                raise
            page.wait_for_timeout(500)
    return page.screenshot(full_page=whole)


def paper(png):
    """The colour of a screenshot at the left of its last row, below the bar of the page."""
    data, at = b"", 8
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    width, depth = int.from_bytes(png[16:20], "big"), 4 if png[25] == 6 else 3
    rows, stride, above = zlib.decompress(data), width * depth + 1, (0, 0, 0)
    for start in range(0, len(rows), stride):
        kind, own = rows[start], rows[start + 1 : start + 4]
        share = {0: 0, 1: 0, 2: 1, 3: 0.5, 4: 1}[kind]  # of the pixel above: none stands to the left
        above = tuple((byte + int(share * known)) % 256 for byte, known in zip(own, above, strict=True))
    return above


def sheets(pdf):
    """How many sheets a PDF has."""
    return len(re.findall(rb"/Type /Page\b", pdf))
