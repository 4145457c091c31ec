"""Processes of a LocalCluster begin where the modules are loaded: each is a fork of one server, which a
worker of the tests starts when it first needs it.

They are processes of their own, with their memory, files, keys and end; what is saved is two seconds of
imports in each. Where a test changes the environment they start from nothing.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path

from fedboost.runtime.local.cluster import AGGREGATOR, LocalCluster

START = LocalCluster._start
NOT_OF_A_TEST = (
    *("GRPC_", "PYTEST_", "KMP_", "MALLOC_TRIM_", "MKL_", "NUMBA_NUM_", "OMP_", "OPENBLAS_"),
    *("PYTHONHASHSEED", "_RJEM_", "__DASK_"),
)
"""How the names begin of what commands, pytest, scikit-learn, polars and Dask set in this process, some
for all tests to come. A fork is not told of them: what reads them is loaded."""


def fork_parties():
    """From now on what a LocalCluster starts is a fork, where libraries may be forked."""
    if sys.platform != "linux":
        return

    def start(cluster, role, file, log, *options):
        if environment() != AT_FIRST:
            return START(cluster, role, file, log, *options)
        return Forked([role, "--config", str(file), *options], log, role == AGGREGATOR)

    LocalCluster._start = start


def environment():
    """That of this process, as far as tests change it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_OF_A_TEST)}


AT_FIRST = environment()


class Forked:
    """`fedboost` with these arguments, whose words go to a file, or its output to `stdout`: what a cluster
    uses of subprocess.Popen."""

    stdout = None

    def __init__(self, arguments, log, is_read):
        _ready()
        ours, theirs = os.pipe() if is_read else (None, log.fileno())
        program = Program(arguments, theirs, log.fileno())
        self._process = multiprocessing.get_context("forkserver").Process(target=program, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        if is_read:
            os.close(theirs)
            self.stdout = os.fdopen(ours)

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("fedboost", timeout)
        return self.returncode

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()


def _ready():
    """Start the server, where there is none, in whose path is this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    try:
        forkserver.set_forkserver_preload(["loaded"])
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}


class Program:
    """What the new process does."""

    def __init__(self, arguments, out, log):
        self._arguments, self._ends, self._folder = arguments, (out, log), os.getcwd()
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._environment = {**environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def __getstate__(self):
        return {**self.__dict__, "_ends": [DupFd(end) for end in self._ends]}

    def __call__(self):
        for number, end in enumerate([end.detach() for end in self._ends], start=1):
            os.dup2(end, number)
            os.close(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        run(self._arguments, self._folder, self._environment)


def run(arguments, folder, environment):
    """Run `fedboost` in this process, whose standard streams are those of the command."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["fedboost", *arguments]
    from fedboost.cli.main import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()
