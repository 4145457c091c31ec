"""Files and folders that are closed to the user: one line, in processes of a user without rights."""

import shlex
import subprocess
import sys

import pytest
from orderly import write_all
from refusals import check_one_line
from unprivileged import NOBODY, ROOT, become, environment, needs_nobody, open_folder

pytestmark = needs_nobody
CLOSED = {
    "a table": (
        "simulate terms.toml --data closed/rows.csv --out open/new.json",
        ["closed/rows.csv", "Permission denied", f"user {NOBODY}"],
    ),
    "keys": ("party --config party.toml", ["closed/keys", "Permission denied", f"user {NOBODY}"]),
    "state": (
        "aggregator --config aggregator.toml --insecure-loopback",
        ["aggregator.state", "Permission denied", "`state`"],
    ),
    "the folder of a model": (
        "simulate terms.toml --data rows.csv --out new.json",
        ["new.json", "is not writable"],
    ),
    "terms": ("terms closed/terms.toml --digest", ["closed/terms.toml", "Permission denied"]),
}


@pytest.fixture(scope="module")
def folder():
    """A folder with everything in order that the user may read and not write, but for `closed` and `open`."""
    with open_folder() as folder:
        write_all(folder)
        site = (folder / "party.toml").read_text()
        (folder / "party.toml").write_text(site + 'keys = "closed/keys"\n')
        (folder / "closed").mkdir(mode=0o700)
        for name in ("rows.csv", "terms.toml"):
            (folder / "closed" / name).write_bytes((folder / name).read_bytes())
        (folder / "open").mkdir()
        (folder / "open").chmod(0o1777)
        yield folder


def files(folder):
    """All but the compiled kernels."""
    return {path for path in folder.rglob("*") if f"fedboost-{NOBODY}" not in path.parts}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "says"), CLOSED.values(), ids=CLOSED)
def test_what_is_closed_to_the_user_ends_the_command_in_one_line(folder, command, says):
    before = files(folder)
    words = [*become(NOBODY), sys.executable, "-m", "fedboost", *shlex.split(command)]
    env = environment(ROOT, TMPDIR=str(folder / "open"))
    end = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert end.returncode == 2, end.stderr
    check_one_line(end.stderr, says)
    assert files(folder) == before
