"""What works without POSIX: party, analyst, simulation and demo. The aggregator says that it does not.

These processes run on Linux with the names taken away that Windows lacks (helpers/without_posix). That shows
that nothing asks for them; it does not show Windows' own behaviour.
"""

import errno
import fcntl
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import start
from processes import ending
from raised import raised
from sites import rows, shared_out, terms, written
from unprivileged import open_folder

from fedboost import system
from fedboost.cli.serve import need_posix
from fedboost.errors import ConfigError
from fedboost.runtime.local.cluster import write_consortium
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.site.store import NAME, make_file
from fedboost.runtime.tasks import terms_to_toml

APART = Path(__file__).parent / "helpers" / "without_posix"
PATH = os.pathsep.join([str(APART), *filter(None, sys.path)])


def without_posix(*words, **options):
    """Start Python in a process without POSIX."""
    environment = {**os.environ, "PYTHONPATH": PATH, "PYTHONWARNINGS": "ignore:only soft file lock"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], text=True, env=environment, **(pipes | options))


def ended(*words, **options):
    """Run Python in a process without POSIX, and return what it printed. It must succeed."""
    process = without_posix(*words, **options)
    out, error = process.communicate(timeout=100)
    assert process.returncode == 0, error
    return out


LEFT = """
import importlib.util, os, signal, sys
print([name for name in ("fcntl", "pwd", "resource", "termios") if sys.modules[name] is not None])
print([name for name in ("geteuid", "fork", "O_DIRECTORY") if hasattr(os, name)])
print([name for name in ("SIGKILL", "SIGHUP", "SIGUSR1") if hasattr(signal, name)])
"""
IMPORT_ALL = """
import importlib, json, pkgutil, fedboost
names = [module.name for module in pkgutil.walk_packages(fedboost.__path__, "fedboost.")]
print(len([importlib.import_module(name) for name in names if not name.endswith("__main__")]))
print(fedboost.system.POSIX)
"""


@pytest.mark.slow
def test_every_module_is_imported_without_posix():
    assert ended("-c", LEFT) == "[]\n[]\n[]\n"
    count, posix = ended("-c", IMPORT_ALL).split()
    assert int(count) > 200
    assert posix == "False"


SIMULATE = """
import sys, fedboost as fb
from pathlib import Path
tables = {path.stem: path for path in map(Path, sys.argv[2:])}
fb.simulate(fb.Terms.load(sys.argv[1]), tables).model.save("there.json")
"""


@pytest.mark.slow
def test_a_simulation_without_posix_gives_the_same_model(tmp_path):
    agreement, files = (
        terms(["north", "south"], protection="masked", allow_two_parties=True),
        written(tmp_path, shared_out(2)),
    )
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreement))
    ended("-c", SIMULATE, "terms.toml", *map(str, files.values()), cwd=tmp_path)
    assert Model.load(tmp_path / "there.json").booster == simulate(agreement, files).model.booster


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--columns", "--protection", "plain")])
def test_the_demo_without_posix(tmp_path, options):
    out = ended("-m", "fedboost", "demo", "--rounds", "2", "--json", *options, cwd=tmp_path)
    *_, last = map(json.loads, out.splitlines())
    assert last["equal"] is True
    for store in tmp_path.rglob("memory.sqlite"):
        assert "No warnings" in ended("-m", "fedboost", "audit", str(store), cwd=tmp_path)


@pytest.mark.slow
def test_parties_and_an_analyst_without_posix_train_with_an_aggregator(tmp_path):
    agreement, files = (
        terms(["north", "south"], protection="masked", allow_two_parties=True),
        written(tmp_path, shared_out(2)),
    )
    (tmp_path / "terms.toml").write_text(terms_to_toml(agreement))
    (tmp_path / "keys").mkdir()
    write_consortium(tmp_path / "keys", {name: name for name in files}, days=1)
    (tmp_path / "a.toml").write_text(f'listen = "127.0.0.1:0"\nkeys = "{tmp_path}/keys/aggregator"\n')
    with ending(
        start("aggregator", "--config", f"{tmp_path}/a.toml", "--json", stdout=subprocess.PIPE)
    ) as own:
        address = json.loads(own.stdout.readline())["address"]
        for name, file in files.items():
            values = {"party": name, "aggregator": address, "data": file.name, "keys": f"keys/{name}"}
            text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            (tmp_path / f"{name}.toml").write_text(text)
            approve = ("approve", "terms.toml", "--config", f"{name}.toml", "--analyst", "analyst", "--yes")
            ended("-m", "fedboost", *approve, cwd=tmp_path)
        parties = [
            without_posix("-m", "fedboost", "party", "--config", f"{name}.toml", "--once", cwd=tmp_path)
            for name in files
        ]
        train = ("train", "terms.toml", "--aggregator", address, "--keys", "keys/analyst", "--out", "m.json")
        ended("-m", "fedboost", *train, cwd=tmp_path)
        for party in parties:
            _, error = party.communicate(timeout=60)
            assert party.returncode == 0, error
    assert Model.load(tmp_path / "m.json").booster == simulate(agreement, files).model.booster


@pytest.mark.slow
def test_a_party_without_posix_stops_in_order_and_is_alone(tmp_path):
    (tmp_path / "north.toml").write_text(
        'party = "north"\naggregator = "127.0.0.1:9"\ndata = "north.parquet"\n'
    )
    written(tmp_path, {"north": rows()})
    words = ("-m", "fedboost", "party", "--config", "north.toml", "--insecure-loopback")
    with ending(without_posix(*words, cwd=tmp_path)) as party:
        assert any("waiting for the aggregator" in line for line in party.stderr)
        assert list(tmp_path.rglob("north.lock"))
        second = without_posix(*words, cwd=tmp_path)
        assert "another process of party 'north' is using this memory" in second.communicate(timeout=60)[1]
        assert second.returncode == 2
        party.terminate()
        party.communicate(timeout=60)
        assert party.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["aggregator", "adder"])
def test_a_server_without_posix_is_refused(tmp_path, command):
    (tmp_path / "a.toml").write_text('listen = "127.0.0.1:0"\n')
    process = without_posix("-m", "fedboost", command, "--config", "a.toml", cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert error.startswith(f"fedboost: fedboost {command} runs only on Linux and macOS; run it there")


# ---- In this process ------------------------------------------------------------------------------------


def test_only_an_aggregator_for_a_demo_needs_no_posix(monkeypatch):
    need_posix("fedboost aggregator")
    monkeypatch.setattr("fedboost.cli.serve.POSIX", False)
    with raised(ConfigError, "system-unsupported"):
        need_posix("fedboost aggregator")
    monkeypatch.setenv(system.LOCAL, "1")
    need_posix("fedboost aggregator")


def test_a_lock_is_held_until_it_is_released(tmp_path):
    unlock = system.lock(tmp_path / "lock", 0)
    assert system.lock(tmp_path / "lock", 0.03) is None
    unlock()
    unlock()  # which has no effect
    system.lock(tmp_path / "lock")()
    with pytest.raises(FileNotFoundError):
        system.lock(tmp_path / "none" / "lock", 0)


HOLD = """
import sys, fedboost.system as system
from pathlib import Path
unlock = system.lock(Path(sys.argv[1]), float(sys.argv[2]))
print("held" if unlock else "refused", flush=True)
sys.stdin.readline()
unlock()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(path, seconds):
    """A process that locks a file, unlocks it after a line of input, and stays until the next."""
    words = [sys.executable, "-c", HOLD, str(path), str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ending(subprocess.Popen(words, text=True, **pipes)) as process, process.stdin:
        yield process


@pytest.mark.slow
def test_processes_exclude_each_other_and_the_locked_file_stays(tmp_path):
    path = tmp_path / "lock"
    with holder(path, 0) as first:
        assert first.stdout.readline() == "held\n"
        inode = path.stat().st_ino
        assert system.lock(path, 0) is None
        with holder(path, 60) as second:
            with holder(path, 0) as third:
                assert third.stdout.readline() == "refused\n"
            print(file=first.stdin, flush=True)
            assert first.stdout.readline() == "released\n"
            assert second.stdout.readline() == "held\n"
            assert system.lock(path, 0) is None
            second.kill()  # which unlocks it, too
            system.lock(path, 60)()
    assert path.stat().st_ino == inode


def test_the_lock_is_the_one_that_other_programs_take(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert system.lock(path, 0) is None
        fcntl.flock(file, fcntl.LOCK_UN)
        unlock = system.lock(path, 0)
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlock()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_thread_does_not_wait_for_itself(tmp_path):
    unlock = system.lock(tmp_path / "lock")
    with pytest.raises(RuntimeError, match="Deadlock"):
        system.lock(tmp_path / "lock")
    unlock()


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(OSError, match="Function not implemented"):
        system.lock(tmp_path / "lock", 0)


OF_ANOTHER = """
import os, sys
from pathlib import Path
from fedboost.runtime.site.memory import FileMemory
folder = Path(sys.argv[1])
FileMemory(folder / "memory.sqlite", "east", "patients").close()  # while all modules can be read
for file in folder.iterdir():
    file.chmod(0o666)
(folder / sys.argv[2]).touch(0)
if os.geteuid() == 0:
    os.setuid(65534)
try:
    FileMemory(folder / "memory.sqlite", "north", "patients")
except Exception as error:
    print(getattr(error, "code", type(error).__name__), error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "code", "fault"),
    [
        ("north.lock", "file-failed", "cannot lock this file"),
        ("north.counter-lock", "DurabilityError", "cannot write this counter file"),
    ],
)
def test_a_lock_of_another_user_is_refused(lock, code, fault):
    with open_folder() as folder:
        make_file(folder / NAME, "patients")
        words = [sys.executable, "-c", OF_ANOTHER, str(folder), lock]
        folder.chmod(0o777)
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        assert done.stdout.startswith(f"{code} {folder / lock}: {fault}: Permission denied")


def test_keys_typed_on_windows(monkeypatch):
    typed = list("early")
    keyboard = SimpleNamespace(kbhit=lambda: bool(typed), getwch=lambda: typed.pop())
    monkeypatch.setattr(system, "msvcrt", keyboard, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert system.is_typed(0)
    system.forget_typed()
    assert typed == []
    assert not system.is_typed(0)


def test_reserved_space_has_the_size_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "scratch").open("wb") as file:
        system.reserve(file, (1 << 20) + 7)
    assert (tmp_path / "scratch").read_bytes() == bytes((1 << 20) + 7)
