"""The table of mistakes: each ends in one line that says what, where and what to do, and loses nothing."""

import shlex

import pytest
from mistakes import all_mistakes
from orderly import write_all
from refusals import refused

MISTAKES = all_mistakes()


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_in_one_line(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(write_all(tmp_path))
    for name, content in mistake.files.items():
        path = tmp_path / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    mistake.prepare(tmp_path)
    refused(tmp_path, shlex.split(mistake.command), *mistake.says)
