"""Mistakes about folders, files and devices of the machine; what root may do all the same is in
tests/cli/test_closed_folders.py."""

from mistakes import Mistake


def _site(*lines: str) -> dict[str, bytes | str]:
    values = ('party = "north"', 'aggregator = "localhost:1"', 'data = "rows.csv"', *lines)
    return {"odd.toml": "\n".join(values) + "\n"}


def _aggregator(*lines: str) -> dict[str, bytes | str]:
    return {"odd.toml": "\n".join(('listen = "127.0.0.1:0"', *lines)) + "\n"}


PARTY = "party --config odd.toml --wait 0.1"
LOOPBACK = f"{PARTY} --insecure-loopback"
AGGREGATOR = "aggregator --config odd.toml"

MISTAKES = {
    "state is a file": Mistake(
        LOOPBACK,
        ("rows.csv", "state folder", "Not a directory", "`state`", "can write"),
        _site('state = "rows.csv"'),
    ),
    "state where no folder can be made": Mistake(
        LOOPBACK, ("/proc/state", "cannot make this state folder", "`state`"), _site('state = "/proc/state"')
    ),
    "state of an aggregator is a file": Mistake(
        f"{AGGREGATOR} --insecure-loopback",
        ("rows.csv", "cannot be used", "`state`", "can write"),
        _aggregator('state = "rows.csv"'),
    ),
    "state of an aggregator where no folder can be made": Mistake(
        f"{AGGREGATOR} --insecure-loopback",
        ("/proc/state", "cannot be used", "`state`"),
        _aggregator('state = "/proc/state"'),
    ),
    "keys are not mounted": Mistake(
        PARTY,
        ("/nonexistent/keys", "no such folder", "`fedboost keys party`"),
        _site('keys = "/nonexistent/keys"'),
    ),
    "keys of an aggregator are not mounted": Mistake(
        AGGREGATOR,
        ("/nonexistent/keys", "no such folder", "`fedboost keys aggregator`"),
        _aggregator('keys = "/nonexistent/keys"'),
    ),
    "keys are a file": Mistake(PARTY, ("rows.csv", "certificate.pem, key.pem"), _site('keys = "rows.csv"')),
    "a config that Docker made a folder": Mistake(
        "party --config folder --insecure-loopback", ("folder: cannot read", "directory")
    ),
    "the machine's other address without keys": Mistake(
        f"{AGGREGATOR} --insecure-loopback",
        ("0.0.0.0:0", "loopback", "use keys"),
        {"odd.toml": 'listen = "0.0.0.0:0"'},
    ),
    "predictions to a full disk": Mistake(
        "predict model.json rows.csv --out /dev/full", ("/dev/full", "No space left on device")
    ),
    "a model below a file": Mistake(
        "simulate terms.toml --data rows.csv --out rows.csv/new.json", ("rows.csv", "cannot write")
    ),
    "the demo into a file": Mistake("demo --out rows.csv", ("rows.csv", "is a file", "needs a folder")),
    "scratch where no folder is": Mistake(
        LOOPBACK, ("scratch folder", "/scratch: does not exist", "make it"), _site('scratch = "scratch"')
    ),
}
