"""Mistakes of who runs a site or an aggregator: logs, metrics, backups, the machine, approvals, keys."""

import socket

from audit_logs import written
from mistakes import Mistake
from sites import fedboost, terms
from starts import Running

AGGREGATOR = "aggregator --config metrics.toml --insecure-loopback"
PARTY = "party --config party.toml --insecure-loopback --wait 0.1"
LISTEN = 'listen = "127.0.0.1:0"\n'
SITE = 'party = "north"\naggregator = "localhost:1"\ndata = "rows.csv"\n'
KEEP = []
"""Sockets that stay open for as long as the tests run."""


def took_part(folder):
    """A session of this site, in its memory and its audit log."""
    with Running(folder / "party.toml") as site:
        site.end(site.begin("s1", terms(["north", "south"])), "s1")


def backed_up(folder):
    """A backup of a site that took part."""
    from fedboost.runtime.site.backup import write_backup
    from fedboost.runtime.site.config import read_party

    took_part(folder)
    write_backup(read_party(folder / "party.toml"), folder / "backup.tar.gz")


def listens(folder):
    """Somebody listens at the address of the metrics already."""
    KEEP.append(socket.create_server(("127.0.0.1", 0)))
    address = f'metrics = "127.0.0.1:{KEEP[-1].getsockname()[1]}"\n'
    (folder / "metrics.toml").write_text(LISTEN + address)
    (folder / "party.toml").write_text(SITE + address)


def log(folder):
    written(folder / "north.audit.sqlite")


def removed(folder, name):
    (folder / "fedboost.state" / "north" / name).unlink()


def _site(*lines):
    values = ('party = "north"', 'aggregator = "localhost:1"', 'data = "rows.csv"', *lines)
    return {"odd.toml": "\n".join(values) + "\n"}


def _aggregator(*lines):
    return {"odd.toml": "\n".join(('listen = "127.0.0.1:0"', *lines)) + "\n"}


DIALS = "party --config odd.toml --wait 0.1"
LOOPBACK = f"{DIALS} --insecure-loopback"
ODD = "aggregator --config odd.toml"
ASK = "--aggregator localhost:1 --insecure-loopback --wait 0.2"


def _root(folder):
    fedboost("keys", "init-consortium", "--folder", folder / "root")


def _requested(folder):
    _root(folder)
    fedboost("keys", "request", "north", "--folder", folder / "site")


MISTAKES = {
    "an unknown level of the log": Mistake(f"{PARTY} --log-level warn"),
    "a number as the level of the log": Mistake(f"{PARTY} --log-level 10"),
    "an unknown format of the log": Mistake(
        "aggregator --config aggregator.toml --insecure-loopback --log-format yaml",
    ),
    "metrics at a port alone": Mistake(
        AGGREGATOR,
        {"metrics.toml": LISTEN + 'metrics = "9090"\n'},
    ),
    "metrics at a URL": Mistake(
        PARTY,
        {"party.toml": SITE + 'metrics = "http://127.0.0.1:9090/metrics"\n'},
    ),
    "metrics as a number": Mistake(AGGREGATOR, {"metrics.toml": LISTEN + "metrics = 9090\n"}),
    "metrics where somebody listens": Mistake(AGGREGATOR, prepare=listens),
    "metrics of a party where somebody listens": Mistake(PARTY, prepare=listens),
    "metrics at another machine's address": Mistake(
        AGGREGATOR,
        {"metrics.toml": LISTEN + 'metrics = "192.0.2.1:0"\n'},
    ),
    "an audit log of its own": Mistake(PARTY, {"party.toml": SITE + 'audit = "north.jsonl"\n'}),
    "entries removed that were not exported": Mistake("audit north.audit.sqlite --remove", prepare=log),
    "an audit of a party that is not there": Mistake(
        "audit north.audit.sqlite --party east",
        prepare=log,
    ),
    "an audit of a session that is not in the log": Mistake(
        "audit north.audit.sqlite --session session-9",
        prepare=log,
    ),
    "an audit of the last none": Mistake("audit north.audit.sqlite --last 0", prepare=log),
    "an audit of one session and the last ones": Mistake(
        "audit north.audit.sqlite --last 2 --session s",
        prepare=log,
    ),
    "a backup of a party that never ran": Mistake(
        "backup --config party.toml --out backup.tar.gz",
    ),
    "a backup over another": Mistake(
        "backup --config party.toml --out backup.tar.gz",
        prepare=backed_up,
    ),
    "a backup into a folder that is not there": Mistake(
        "backup --config party.toml --out nowhere/backup.tar.gz",
        prepare=took_part,
    ),
    "a backup over the site's file": Mistake(
        "backup --config party.toml --out party.toml --force",
        prepare=took_part,
    ),
    "a restore from a file that is not there": Mistake("restore nowhere.tar.gz --config party.toml"),
    "a restore from a table": Mistake("restore rows.csv --config party.toml"),
    "a party whose memory is lost": Mistake(
        PARTY,
        prepare=lambda folder: (took_part(folder), removed(folder, "memory.sqlite")),
    ),
    "state is a file": Mistake(
        LOOPBACK,
        _site('state = "rows.csv"'),
    ),
    "state where no folder can be made": Mistake(
        LOOPBACK,
        _site('state = "/proc/state"'),
    ),
    "state of an aggregator is a file": Mistake(
        f"{ODD} --insecure-loopback",
        _aggregator('state = "rows.csv"'),
    ),
    "state of an aggregator where no folder can be made": Mistake(
        f"{ODD} --insecure-loopback",
        _aggregator('state = "/proc/state"'),
    ),
    "keys are not mounted": Mistake(
        DIALS,
        _site('keys = "/nonexistent/keys"'),
    ),
    "keys of an aggregator are not mounted": Mistake(
        ODD,
        _aggregator('keys = "/nonexistent/keys"'),
    ),
    "keys are a file": Mistake(DIALS, _site('keys = "rows.csv"')),
    "a config that Docker made a folder": Mistake("party --config folder --insecure-loopback"),
    "the machine's other address without keys": Mistake(
        f"{ODD} --insecure-loopback",
        {"odd.toml": 'listen = "0.0.0.0:0"'},
    ),
    "predictions to a full disk": Mistake("predict model.json rows.csv --out /dev/full"),
    "a model below a file": Mistake("simulate terms.toml --data rows.csv --out rows.csv/new.json"),
    "the demo into a file": Mistake("demo --out rows.csv"),
    "scratch where no folder is": Mistake(LOOPBACK, _site('scratch = "scratch"')),
    "status of a port where nobody listens": Mistake(f"status {ASK}"),
    "status of a URL": Mistake("status --aggregator https://fed:7070 --insecure-loopback"),
    "status without keys": Mistake("status --aggregator localhost:1"),
    "check of terms without parties": Mistake(f"preflight alone.toml {ASK}"),
    "check of terms that are not there": Mistake(f"preflight nowhere.toml {ASK}"),
    "the key sent in place of the request": Mistake(
        "keys sign site/north/key.pem --folder root --yes",
        prepare=_requested,
    ),
    "signing where the root is not": Mistake(
        "keys sign site/north/request.pem --folder site --yes",
        prepare=_requested,
    ),
    "asking twice": Mistake(
        "keys request north --folder site",
        prepare=_requested,
    ),
}
