"""The pages as a site: each link and anchor leads somewhere, and no page requests anything from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REQUESTS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "form": "action"}
"""Elements that make a browser request something, and the attribute that says what."""


class Requests(HTMLParser):
    """The addresses that a page requests by itself, and the text of its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if values.get("rel") not in ("canonical", "next", "prev") and REQUESTS.get(tag) in values:
            self.addresses.append(values[REQUESTS[tag]] or "")
        self.addresses += re.findall(r"url\(([^)]*)\)", values.get("style") or "")


@pytest.mark.slow
def test_the_site_is_whole_and_requests_nothing_from_elsewhere(tmp_path):
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [*site.rglob("*.html")]
    assert len(pages) > 80  # those of docs, the decisions, and the files of the repository that they name
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text())
        assert requests.addresses
        assert not [address for address in requests.addresses if re.match(r"(\w+:)?//", address)], page
        assert "file-search.js" in page.read_text()
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = {")
    assert "troubleshooting.html" in index
    assert '"location":"repository/' not in index  # they would hide the pages that say what to do
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style
