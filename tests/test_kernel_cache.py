"""Compiled kernels of accounts that can write here and there, or nowhere: real processes."""

import grp
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial

import pytest
from unprivileged import (
    NOBODY,
    STRANGER,
    become,
    copy_package,
    environment,
    needs_mounts,
    needs_nobody,
    open_folder,
)

from fedboost import kernel_cache

CALL = "import numpy; from fedboost.gbdt.kernels import objectives as e; print(e.{}(numpy.zeros(1)))"
EXPS, LOGS = CALL.format("exps"), CALL.format("logs").replace("zeros", "ones")
pytestmark = needs_nobody


@pytest.fixture(scope="module")
def package():
    """A folder with the package, which belongs to root."""
    with open_folder() as folder:
        copy_package(folder)
        yield folder


@pytest.fixture
def place():
    """A folder for whatever a test needs, with a `tmp` that all may write."""
    with open_folder() as folder:
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        yield folder


def python(package, place, code=EXPS, user=NOBODY, before=(), **values):
    """Run Python as the user; TMPDIR is the place's unless given."""
    variables = {"TMPDIR": str(place / "tmp"), **{name: str(value) for name, value in values.items()}}
    command = [*before, *become(user), sys.executable, "-c", code]
    env = environment(package, **variables)
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)


def check(end, code=0, *says):
    """It ended so, with nothing on standard error or one line that says these things."""
    assert end.returncode == code, end.stderr
    assert end.stderr.count("\n") == bool(says), end.stderr
    for part in says:
        assert part in end.stderr


def made(folder, user, mode):
    """A folder of a user."""
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, user, user)
    return folder


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.nb[ci]")}


def fedboost(*arguments):
    return f"import sys; sys.argv[1:] = {arguments}; from fedboost.cli.main import main; main()"


@pytest.mark.slow
def test_an_account_without_a_home_keeps_kernels_in_a_folder_of_its_own_in_tmp(package, place):
    check(python(package, place))
    own = place / "tmp" / f"fedboost-{NOBODY}"
    assert own.stat().st_mode & 0o7777 == 0o700
    assert own.stat().st_uid == NOBODY
    kept = files(own)
    assert len(kept) == 2
    check(python(package, place))
    assert files(own) == kept


@pytest.mark.slow
def test_a_home_that_can_be_written_comes_first(package, place):
    home = made(place / "home", NOBODY, 0o700)
    check(python(package, place, HOME=home))
    assert files(home / ".cache" / "fedboost")
    assert not any((place / "tmp").iterdir())


@pytest.mark.slow
def test_the_package_comes_before_that_and_others_read_what_is_there(place):
    copy_package(place)
    code = EXPS.replace("import", "import os; os.umask(0o22); import", 1)
    end = subprocess.run([sys.executable, "-c", code], env=environment(place), cwd="/", check=False)
    assert end.returncode == 0
    kept = files(place / "fedboost")
    assert kept
    check(python(place, place))
    assert files(place / "fedboost") == kept
    assert not files(place / "tmp")


@pytest.mark.slow
def test_a_changed_kernel_leaves_those_that_call_it_unread(place):
    copy_package(place)
    check(python(place, place))
    source = place / "fedboost" / "gbdt" / "kernels" / "histogram.py"
    source.write_text(source.read_text() + "\n# changed\n")
    check(python(place, place))
    assert len(list((place / "tmp" / f"fedboost-{NOBODY}").iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("prepare", ["writable", "foreign", "link"])
def test_a_folder_in_tmp_that_another_user_can_write_is_not_used(package, place, prepare):
    own = place / "tmp" / f"fedboost-{NOBODY}"
    if prepare == "writable":
        made(own, NOBODY, 0o777)
    elif prepare == "foreign":
        made(own, STRANGER, 0o777)
    else:
        own.symlink_to(made(place / "other", NOBODY, 0o700))
        os.chown(own, STRANGER, STRANGER, follow_symlinks=False)
    check(
        python(package, place), 0, "fedboost: compiled kernels cannot be stored", str(own), "FEDBOOST_CACHE"
    )
    assert not files(place)


@pytest.mark.parametrize(
    ("name", "members", "safe"), [("root", [], True), ("root", ["marie"], False), ("users", [], False)]
)
def test_a_group_with_others_in_it_is_not_its_owners_alone(place, monkeypatch, name, members, safe):
    """Also where it has the number of the user, as `users` may have."""
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((name, "x", number, members)))
    (place / "cache").mkdir(mode=0o700)
    (place / "cache").chmod(0o770)
    with nullcontext() if safe else pytest.raises(OSError, match="other users can write"):
        kernel_cache._check_safe(place / "cache")


@pytest.mark.slow
def test_a_folder_that_another_user_makes_later_is_not_read(package, place):
    """The folder in tmp is cleaned up while the process runs, and a stranger takes its name, with kernels."""
    check(python(package, place))
    own, planted = place / "tmp" / f"fedboost-{NOBODY}", place / "planted"
    own.rename(planted)
    for path in (planted, *planted.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
        path.chmod(0o755)
    code = (
        f"import os; from fedboost.kernel_cache import folders; w = folders().write; "
        f"os.rmdir(w); os.rmdir(w.parent); os.symlink({str(planted)!r}, w.parent); "
        f"from fedboost.gbdt.kernels import objectives as e; import numpy; e.exps(numpy.zeros(1)); "
        f"print(sum(e.exps.stats.cache_hits.values()))"
    )
    end = python(package, place, code)
    assert end.returncode == 0, end.stderr
    assert end.stdout == "0\n"


@pytest.mark.slow
def test_without_any_folder_kernels_are_compiled_and_one_line_says_so(package, place):
    made(place / "closed", 0, 0o755)
    end = python(package, place, f"{EXPS}; {LOGS}", TMPDIR=place / "closed")
    check(end, 0, "cannot be stored", "each command compiles", "Permission denied", "set FEDBOOST_CACHE")
    assert end.stdout == "[1.]\n[0.]\n"


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["FEDBOOST_CACHE", "NUMBA_CACHE_DIR"])
def test_a_named_folder_is_used_alone(package, place, variable):
    home, named = made(place / "home", NOBODY, 0o700), made(place / "named", NOBODY, 0o755)
    check(python(package, place, HOME=home, **{variable: named / "kernels"}))
    assert files(named / "kernels")
    assert not any(home.iterdir())


UNUSABLE = {
    "a file": (lambda path: path.touch(), ["Not a directory"]),
    "not writable": (lambda path: made(path, 0, 0o755), ["Permission denied", "cannot be written"]),
    "below nothing": (lambda path: None, ["Permission denied"]),
    "open to all": (lambda path: made(path, 0, 0o777), ["other users can write", "chmod go-w"]),
    "another user's": (lambda path: made(path, STRANGER, 0o755), ["cannot be written"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "says"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_named_folder_that_cannot_be_used_ends_the_command_in_one_line(package, place, prepare, says):
    named = place / "named"
    prepare(named)
    end = python(package, place, fedboost("terms", "terms.toml", "--digest"), FEDBOOST_CACHE=named)
    check(end, 2, f"fedboost: FEDBOOST_CACHE={named}: ", *says)
    assert not files(place)


@pytest.mark.slow
def test_a_folder_that_can_only_be_read_is_read_and_what_it_lacks_is_kept_elsewhere(package, place):
    named = place / "named"
    check(python(package, place, user=0, FEDBOOST_CACHE=named))
    kept = files(named)
    check(python(package, place, FEDBOOST_CACHE=named))
    assert files(place) == kept
    check(python(package, place, LOGS, FEDBOOST_CACHE=named))
    assert files(named) == kept
    assert len(files(place / "tmp")) == 2


@pytest.mark.slow
@needs_mounts
def test_a_full_disk_is_named_and_the_command_goes_on(package, place):
    named = place / "named"
    named.mkdir()
    mount = f'mount -t tmpfs -o size=16k,mode=755,uid={NOBODY} none {named} && exec "$@"'
    run = partial(python, package, place, before=["unshare", "--mount", "sh", "-c", mount, "sh"])
    end = run(f"{EXPS}; {LOGS}", FEDBOOST_CACHE=named)
    check(end, 0, str(named), "No space left on device", "free space on that disk, or set FEDBOOST_CACHE")
    assert end.stdout == "[1.]\n[0.]\n"


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "kept"), [("*.nbi", 0), ("*.nbi", 40), ("*.nbc", 40)])
def test_a_damaged_file_is_written_anew(package, place, pattern, kept):
    check(python(package, place))
    (file,) = (place / "tmp").rglob(pattern)
    whole = file.read_bytes()
    os.truncate(file, kept)
    check(python(package, place))
    assert file.read_bytes()[:kept] == whole[:kept]
    assert file.stat().st_size > kept


def test_the_version_is_of_every_file_with_kernels():
    """Numba does not notice a change in a kernel that another file calls."""
    package = kernel_cache.PACKAGE
    compiles = re.compile(r"gbdt\.kernels import .*\b(?:loop|elementwise)\b|kernel_cache import kernel\b")
    sources = {path for path in package.rglob("*.py") if compiles.search(path.read_text())}
    assert len(sources) > 5
    assert sources <= {path for pattern in kernel_cache.SOURCES for path in package.glob(pattern)}
