"""Errors of fedboost that a test expects, by their code."""

from contextlib import contextmanager

import pytest


@contextmanager
def raised(kind, *codes, naming=()):
    """Like pytest.raises, for an error of this kind with one of these codes, whose sentence has the values
    in naming."""
    with pytest.raises(kind) as caught:
        yield caught
    try:
        assert caught.value.code in codes, f"{caught.value.code}: {caught.value}"
        for value in naming:
            assert str(value) in str(caught.value)
    finally:
        del caught  # its traceback has this frame: generators in it would stay open


def after(name, text):
    """The rest of a sentence that begins with this name, such as a file's, without a colon after it."""
    assert text.startswith(str(name)), text
    return text.removeprefix(str(name)).lstrip(": ")
