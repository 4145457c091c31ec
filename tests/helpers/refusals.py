"""Commands that are refused with one line."""

from sites import fedboost

from fedboost.kernel_cache import COMPILING
from fedboost.runtime.site.config import STATE

STARTS = ("created a new memory of sessions", " rows read ", COMPILING, "kernels compiled in")
"""What a party logs before it dials."""


def refused(folder, arguments, *said):
    """Run the command, and return the one line that it must end with, which contains `said`; the folder stays
    as it was, but for a memory that a party begins at its start; what it logs then is left aside."""

    def times():
        files = (file for file in folder.rglob("*") if STATE not in file.parts)
        return {file: file.stat().st_mtime_ns for file in files}

    before = times()
    end = fedboost(*arguments)
    assert end.code == 2, end.err
    lines = end.err.splitlines(keepends=True)
    line = "".join(line for line in lines if not any(start in line for start in STARTS))
    check_one_line(line, said)
    assert "model:" not in end.out
    assert times() == before
    return line


def refusal(*arguments):
    """The one line by which a command says why it is refused; it prints nothing else."""
    end = fedboost(*arguments)
    assert (end.code, end.out) == (2, "")
    check_one_line(end.err, ())
    return end.err


def check_one_line(text, said):
    assert text.startswith("fedboost: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    for part in said:
        assert part in text
