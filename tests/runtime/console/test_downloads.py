"""Model files of a console: sent in parts, to a few readers at a time, under bounds of memory."""

import tracemalloc

import pytest
from console_facts import ended
from consoles import served
from processes import wait_until

from fedboost.runtime import console as downloads

SIZE = 24_000_000
PATH = f"/api/v1/models/{ended(1).name}"


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """A console with a session whose model is large, on the disk."""
    state = tmp_path_factory.mktemp("state")
    with served(tmp_path_factory.mktemp("console"), state=state) as one:
        archive = one.one.server.pages._archive
        (state / "ended" / f"{ended(1).name}.model").write_bytes(b'"%s"' % (b"x" * (SIZE - 2)))
        archive.ended = [ended(1), ended(2, "left")]
        yield one


def test_a_model_is_whole(console):
    answer = console.ask(PATH)
    assert (answer.status, len(answer.text)) == (200, SIZE)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{ended(1).name}.json"'
    head = console.ask(PATH, "HEAD")
    assert (head.status, head.headers["Content-Length"], head.text) == (200, str(SIZE), "")
    none = console.ask(f"/api/v1/models/{ended(2, 'left').name}")
    assert (none.status, none.json["error"]) == (404, "this session has no model, or it is no longer kept")


def test_readers_that_are_slow_take_little_memory(console):
    """And one too many is asked to come again, until one of them is gone."""
    ask = f"GET {PATH} HTTP/1.1\r\nHost: {console.host}\r\nConnection: close\r\n\r\n".encode()
    tracemalloc.start()
    opened = []
    try:
        for _ in range(downloads.MAX_DOWNLOADS):
            opened.append(console.open())
            opened[-1].sendall(ask)
            assert opened[-1].recv(12) == b"HTTP/1.1 200"
        answer = console.ask(PATH)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert answer.json["error"] == "8 downloads are already in progress; try again later"
        assert tracemalloc.get_traced_memory()[1] < SIZE
    finally:
        tracemalloc.stop()
        for each in opened:
            each.close()
    wait_until(lambda: console.ask(PATH, "HEAD").status == 200)


def test_a_reader_that_takes_too_long_is_cut_off(console, monkeypatch):
    monkeypatch.setattr(downloads, "DOWNLOAD_SECONDS", 0.05)
    wait_until(lambda: console.ask(PATH, "HEAD").status == 200)
    console.one.log.events.clear()
    console.one.server.refusals._peers.clear()
    with console.open() as opened:
        opened.sendall(f"GET {PATH} HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode())
        wait_until(lambda: console.refused)
    assert console.refused == [(f"GET {PATH}", "408: the download took longer than 0.05 s")]
