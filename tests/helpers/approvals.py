"""A site that is asked, and what is typed there."""

import json
import os
import pty
import sys
import termios
from collections import deque
from contextlib import closing, contextmanager
from pathlib import Path

from pyarrow import csv
from sites import fedboost, rows, terms

from fedboost.errors import Refused
from fedboost.runtime.site.approval import policy_for
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.store import Store, reading
from fedboost.runtime.tasks import terms_to_toml

THREE = ("north", "south", "east")
SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "rows.csv"\n'


def offered(**settings):
    return terms(THREE, **{"protection": "masked", **settings})


def write_site(folder):
    """rows.csv, party.toml without a policy, and terms.toml."""
    csv.write_csv(rows(), folder / "rows.csv")
    (folder / "party.toml").write_text(SITE)
    (folder / "terms.toml").write_text(terms_to_toml(offered()))
    return folder


@contextmanager
def keyboard(monkeypatch):
    """Somebody at a terminal who types each line once there is a question for it."""
    ours, theirs = pty.openpty()
    later, flush = deque(), termios.tcflush

    def asked(file, queue):
        flush(file, queue)
        if later:
            os.write(ours, f"{later.popleft()}\n".encode())

    with os.fdopen(theirs) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(termios, "tcflush", asked)
        yield lambda *texts: later.extend(texts)
    os.close(ours)


def run(*options, terms_file="terms.toml"):
    return fedboost("approve", terms_file, "--config", "party.toml", *options)


def permits(agreement, analyst=""):
    """What the site says to an offer of these terms: '' if it takes part."""
    config = read_party(Path("party.toml"), None)
    try:
        policy_for(config, agreement, analyst).permit(agreement, config.party, analyst=analyst)
    except Refused as error:
        return error.public
    return ""


def decisions(config, *kinds):
    """By kind and digest the decisions in a site's store, of both kinds unless one is named."""
    with reading(memory_path(config)) as file:
        rows = [] if file is None else file.execute("SELECT kind, digest, content FROM decisions").fetchall()
    return {
        (kind, digest): json.loads(content)
        for kind, digest, content in rows
        if content and kind in (kinds or ("approved", "refused"))
    }


def rewrite(config, kind, digest, content):
    """Put another text in the place of a decision, as a version might that writes others."""
    with closing(Store(memory_path(config), config.party)) as store, store.transaction() as file:
        store.promise(file, "decisions", config.party, digest, kind, content)


def approvals(folder):
    """The digests of the terms that a site in this folder approved."""
    return [digest for _, digest in decisions(read_party(folder / "party.toml", None), "approved")]
