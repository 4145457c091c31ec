"""Mistakes of who runs a site or an aggregator: logs, metrics, the audit log, backups."""

import socket
import tarfile

from audit_logs import written
from mistakes import Mistake
from sites import terms
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


def other_archive(folder):
    with tarfile.open(folder / "other.tar.gz", "w:gz") as archive:
        archive.add(folder / "rows.csv", "rows.csv")


def removed(folder, name):
    (folder / "fedboost.state" / "north" / name).unlink()


MISTAKES = {
    "an unknown level of the log": Mistake(
        f"{PARTY} --log-level warn", ("--log-level", "'warn'", "did you mean warning?", "debug, info")
    ),
    "a number as the level of the log": Mistake(
        f"{PARTY} --log-level 10", ("--log-level", "'10'", "choose debug, info, warning or error")
    ),
    "an unknown format of the log": Mistake(
        "aggregator --config aggregator.toml --insecure-loopback --log-format yaml",
        ("--log-format", "'yaml'", "text or json"),
    ),
    "metrics at a port alone": Mistake(
        AGGREGATOR,
        ("metrics.toml", "metrics", "'9090'", "HOST:PORT"),
        {"metrics.toml": LISTEN + 'metrics = "9090"\n'},
    ),
    "metrics at a URL": Mistake(
        PARTY,
        ("party.toml", "metrics", "http://", "HOST:PORT"),
        {"party.toml": SITE + 'metrics = "http://127.0.0.1:9090/metrics"\n'},
    ),
    "metrics as a number": Mistake(
        AGGREGATOR, ("metrics.toml", "metrics", "9090"), {"metrics.toml": LISTEN + "metrics = 9090\n"}
    ),
    "metrics where somebody listens": Mistake(
        AGGREGATOR, ("metrics: cannot listen on 127.0.0.1:", "in use", "another address"), prepare=listens
    ),
    "metrics of a party where somebody listens": Mistake(
        PARTY, ("metrics: cannot listen on 127.0.0.1:", "in use", "another address"), prepare=listens
    ),
    "metrics at another machine's address": Mistake(
        AGGREGATOR,
        ("metrics: cannot listen on 192.0.2.1:0", "an", "address of this machine"),
        {"metrics.toml": LISTEN + 'metrics = "192.0.2.1:0"\n'},
    ),
    "an audit log of its own": Mistake(
        PARTY, ("party.toml", "unknown key 'audit'"), {"party.toml": SITE + 'audit = "north.jsonl"\n'}
    ),
    "entries removed that were not exported": Mistake(
        "audit north.audit.sqlite --remove", ("--remove", "--export"), prepare=log
    ),
    "an audit of a party that is not there": Mistake(
        "audit north.audit.sqlite --party east",
        ("north.audit.sqlite", "no log of 'east'", "it has north"),
        prepare=log,
    ),
    "an audit of a session that is not in the log": Mistake(
        "audit north.audit.sqlite --session session-9",
        ("north.audit.sqlite", "has no session 'session-9'", "it has s"),
        prepare=log,
    ),
    "an audit of the last none": Mistake(
        "audit north.audit.sqlite --last 0", ("--last 0", "1 or more"), prepare=log
    ),
    "an audit of one session and the last ones": Mistake(
        "audit north.audit.sqlite --last 2 --session s",
        ("--session and --last exclude", "take one"),
        prepare=log,
    ),
    "a backup of a party that never ran": Mistake(
        "backup --config party.toml --out backup.tar.gz",
        ("memory.sqlite", "there is no memory to back up", "start the party first"),
    ),
    "a backup over another": Mistake(
        "backup --config party.toml --out backup.tar.gz",
        ("backup.tar.gz", "exists already", "--force"),
        prepare=backed_up,
    ),
    "a backup into a folder that is not there": Mistake(
        "backup --config party.toml --out nowhere/backup.tar.gz",
        ("nowhere/backup.tar.gz", "directory", "does not exist"),
        prepare=took_part,
    ),
    "a backup over the site's file": Mistake(
        "backup --config party.toml --out party.toml --force",
        ("party.toml", "is read by this very command", "another name"),
        prepare=took_part,
    ),
    "a restore over a memory": Mistake(
        "restore backup.tar.gz --config party.toml",
        ("memory.sqlite", "there is a memory already", "it stays as it is"),
        prepare=backed_up,
    ),
    "a restore from a file that is not there": Mistake(
        "restore nowhere.tar.gz --config party.toml", ("nowhere.tar.gz", "cannot read", "No such file")
    ),
    "a restore from a table": Mistake(
        "restore rows.csv --config party.toml", ("rows.csv", "is no backup", "`fedboost backup`")
    ),
    "a restore from another archive": Mistake(
        "restore other.tar.gz --config party.toml",
        ("other.tar.gz", "is no backup", "`fedboost backup`"),
        prepare=other_archive,
    ),
    "a restore at another party": Mistake(
        "restore backup.tar.gz --config south.toml",
        ("backup.tar.gz", "is a backup of party 'north'", "south.toml is of 'south'"),
        {"south.toml": SITE.replace("north", "south")},
        prepare=backed_up,
    ),
    "a party whose memory is lost": Mistake(
        PARTY,
        ("memory.sqlite", "is gone", "restore the memory from a backup"),
        prepare=lambda folder: (took_part(folder), removed(folder, "memory.sqlite")),
    ),
}
