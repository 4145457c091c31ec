"""An address at which no aggregator answers ends in one line that says so."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from orderly import write_all
from refusals import check_one_line, refused
from sites import fedboost

from fedboost.runtime.net import channel


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything in order: rows.csv, terms.toml, party.toml, aggregator.toml, model.json."""
    monkeypatch.chdir(tmp_path)
    return write_all(tmp_path)


def train_at(address, wait="0.3"):
    return (
        "train",
        "terms.toml",
        "--aggregator",
        address,
        "--out",
        "new.json",
        "--wait",
        wait,
        "--insecure-loopback",
    )


@pytest.fixture
def silent():
    """A server that accepts and closes at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.fixture
def other_grpc():
    """A gRPC server that serves something else."""
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(5)


def test_what_a_peer_says_is_one_printable_line(folder):
    """An aggregator that answers with a page of control characters."""

    def refuse(request, answering):
        answering.abort(grpc.StatusCode.PERMISSION_DENIED, "\x1b[2Jgone\r\nTraceback:\né" + "\x07" * 2500)

    method = grpc.unary_stream_rpc_method_handler(refuse)
    name = channel.TRAIN.rpartition("/")[2]
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(channel.SERVICE, {name: method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    end = fedboost(*train_at(f"127.0.0.1:{port}", "5"))
    server.stop(None).wait(5)
    assert end.code == 2
    assert end.err.startswith("fedboost: \\x1b[2Jgone\\r\\nTraceback:\\né\\x07")
    assert end.err[:-1].isprintable()
    assert end.err.endswith("…\n")
    assert len(end.err) < 10_000


def with_aggregator(folder, address):
    text = (folder / "party.toml").read_text().replace("localhost:1", address)
    (folder / "party.toml").write_text(text)
    return ("party", "--config", "party.toml", "--wait", "0.3", "--insecure-loopback")


def test_nobody_listens(folder):
    refused(folder, train_at("127.0.0.1:1"), "127.0.0.1:1", "no aggregator answers", "0.3 s")


def test_a_host_that_does_not_exist(folder):
    refused(
        folder,
        train_at("host.invalid:7070"),
        "only works on this machine, not with host.invalid:7070",
        "use keys",
    )


@pytest.mark.slow
def test_a_server_that_hangs_up(folder, silent):
    refused(folder, train_at(silent), silent, "no aggregator answers")
    refused(folder, with_aggregator(folder, silent), silent, "no aggregator answers")


def test_a_server_of_something_else(folder, other_grpc):
    refused(folder, train_at(other_grpc, "5"), other_grpc, "not a fedboost aggregator")
    refused(folder, with_aggregator(folder, other_grpc), other_grpc, "not a fedboost aggregator")


@pytest.mark.slow
def test_a_port_that_is_taken(folder):
    """In a process of its own: what gRPC itself writes to standard error counts, too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (folder / "aggregator.toml").write_text(f'listen = "{address}"\n')
        command = [
            sys.executable,
            "-m",
            "fedboost",
            "aggregator",
            "--config",
            "aggregator.toml",
            "--insecure-loopback",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        end = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert end.returncode == 2
    assert end.stdout == ""
    check_one_line(end.stderr, [f"cannot listen on {address}", "already in use"])
