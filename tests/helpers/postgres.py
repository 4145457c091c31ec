"""A PostgreSQL server of a test: its own cluster in a temporary folder, on loopback and a free port.

It runs as an unprivileged user where the tests run as root, since the server refuses root, and is stopped by
the id of its process.
"""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

USER, PASSWORD = "reader", "s3cret-word"
PATIENCE = 30.0
"""Seconds for which a start or a stop is waited for."""
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_wal_size": "2GB",
}


def programs():
    """The folder of `initdb` and `postgres`; None if there is none on this machine."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if shutil.which("pg_config"):
        bindir = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False).stdout
        folders.append(Path(bindir.strip()))
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _unprivileged():
    """The words before a command that must not run as root."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        return None
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]


def missing():
    """The reason why no server can run here; empty if it can."""
    if programs() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    return "no setpriv, and the server refuses to run as root" if _unprivileged() is None else ""


def _free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def server():
    """Run a server; yield the URI of its superuser, whose password it has."""
    folder = TemporaryDirectory(prefix="fedboost-postgres-")
    with folder as name:
        cluster, words, log = Path(name, "cluster"), Path(name, "password"), Path(name, "log")
        words.write_text(PASSWORD)
        before = _unprivileged()
        if before:
            for path in (Path(name), words):
                shutil.chown(path, "nobody", "nogroup")
        user = ["--username", USER, "--pwfile", str(words), "--auth", "scram-sha-256"]
        command = [*before, str(programs() / "initdb"), "--pgdata", str(cluster), *user]
        command += ["--no-sync", "--encoding", "UTF8", "--no-locale"]
        subprocess.run(command, cwd=name, check=True, stdout=subprocess.DEVNULL)
        port = _free_port()
        settings = [f"-c{key}={value}" for key, value in {**SETTINGS, "port": str(port)}.items()]
        with log.open("wb") as out:
            command = [*before, str(programs() / "postgres"), "-D", str(cluster), *settings]
            process = subprocess.Popen(command, cwd=name, stdout=out, stderr=out)
        try:
            _wait(port, process, log)
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(2)  # fast shutdown: open transactions are rolled back
            process.wait(PATIENCE)


def _wait(port, process, log):
    end = time.monotonic() + PATIENCE
    while "ready to accept connections" not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"PostgreSQL did not start at port {port}: {log.read_text()}")
        time.sleep(0.05)
