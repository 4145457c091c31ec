"""`fedboost tune`: what a user gets wrong is one line."""

import pytest
from sites import fedboost, terms

from fedboost.runtime.terms_file import terms_to_toml

ALL = ("north", "south")


@pytest.mark.parametrize(
    ("space", "options", "says"),
    [
        ("", (), "the space has no settings"),
        ("gamma = [1]", (), "gamma takes [low, high], or a list of three values and more"),
        ("gamma = [true, false, true]", (), "gamma takes [low, high]"),
        ("gamma = [nan, 1, 2]", (), "gamma takes [low, high]"),
        (f"gamma = [0, {'9' * 400}]", (), "gamma takes [low, high]"),
        ("gamma = [-1, 1]", (), "gamma"),
        ('"\\u001b[2J" = [0, 1]', (), "unknown space"),
        ("{}", (), "not TOML"),
        (b"\xff\xfe", (), "not TOML"),
        ("gamma = [0, 1]", ("--trials", 129), "129 trials: give 2 to 128"),
        ("gamma = [0, 1]", ("--trials", 1), "--trials 1"),
        ("gamma = [0, 1]", ("--out", "tune.toml"), "named by both --out and --save-terms"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, space, options, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.toml").write_text(terms_to_toml(terms(ALL)))
    (tmp_path / "space.toml").write_bytes(space if isinstance(space, bytes) else space.encode())
    end = fedboost("tune", "terms.toml", "--space", "space.toml", "--save-terms", "tune.toml", *options)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
    assert says in end.err
    assert end.err.removesuffix("\n").isprintable()
    assert not (tmp_path / "tune.toml").exists()
