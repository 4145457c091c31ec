"""Lines of a training where no bar is drawn: about ten, and one after each round that takes long."""

import io
import re
import sys

import pytest
from sites import terms

from fedboost.cli.train import progress


def lines(capsys, seconds, rounds):
    """What is printed after each round."""
    printed = []
    with progress(terms(rounds=rounds), json=False) as draw:
        for number, took in enumerate(seconds):
            draw({"round": number, "seconds": took, "bytes": 1000.0})
            printed.append(capsys.readouterr().out.strip())
    return printed


def test_quick_rounds_print_ten_lines_and_no_time(capsys):
    printed = lines(capsys, [0.5] * 100, 100)
    assert len(list(filter(None, printed))) == 10
    assert not any("left" in line for line in printed)


def test_each_slow_round_has_a_line_with_the_time_left(capsys):
    printed = lines(capsys, [200.0, 60.0, 60.0, 90.0], 40)
    assert all(printed)
    assert "left" not in printed[0]
    assert printed[1].endswith("about 38.0 min left")
    assert printed[3].endswith("about 36.0 min left")  # the median of these


def test_the_last_round_has_no_time_left(capsys):
    *_, last = lines(capsys, [60.0] * 3, 3)
    assert last.startswith("round 3/3")
    assert "left" not in last


@pytest.mark.parametrize("took", [10.0, 15.0])
def test_rounds_add_up_to_a_line(capsys, took):
    printed = lines(capsys, [took] * 6, 100)
    assert [number for number, line in enumerate(printed) if line] == ([3] if took == 10.0 else [2, 5])


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self):
        """True: it is one."""
        return True


@pytest.mark.parametrize(("width", "shown"), [(80, 1), (160, 4)])
def test_a_bar_keeps_the_round_and_leaves_out_metrics_that_have_no_room(monkeypatch, width, shown):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("rich._console", None)  # the one of this process has the width of its start
    metrics = {f"{rows}{name}": 0.5 for rows in ("", "validation-") for name in ("logloss", "auc")}
    agreed = terms(rounds=100, eval_metric=["logloss", "auc"], validation_fraction=0.3)
    with progress(agreed, json=False) as draw:
        for number in range(100):
            draw({"round": number, **metrics, "seconds": 0.1, "bytes": 1e6})
    last = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", sys.stdout.getvalue().rsplit("\r", 1)[1]).strip()
    assert len(last) <= width
    assert "…" not in last
    assert last.startswith("round 100/100 ━")
    assert last.count("0.50000") == shown
    assert "validation-auc 0.50000 100.0 MB" in last
