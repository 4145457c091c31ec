"""A question at the terminal of a site.

Promises: an answer was typed after the question.
Refuses: to ask where there is no terminal (Refused).
"""

import select
import sys
import termios
from collections.abc import Callable

from fedboost.errors import Refused

ANSWER_POLL = 0.2
"""Seconds after which somebody who is asked is asked no longer, once nobody waits for the answer."""


def has_terminal() -> bool:
    """Tell if somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask_terminal(question: str, stopped: Callable[[], bool] = lambda: False) -> str:
    """The line that the person at the terminal answers with. What was typed before is not an answer.

    Refused if there is no terminal, or once `stopped` says that nobody waits for the answer any more.
    """
    if not has_terminal():
        raise Refused("its standard input is no terminal, so nobody can be asked")
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    print(question, end="", file=sys.stderr, flush=True)
    while not select.select([sys.stdin], [], [], ANSWER_POLL)[0]:
        if stopped():
            print("\nno longer asked for: the session or its connection ended", file=sys.stderr)
            raise Refused("nobody answered before the session or its connection ended")
    return sys.stdin.readline().strip()


def terminal_ask(text: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Show a text on the terminal; return True if the person there says yes. Refused as `ask_terminal`."""
    question = f"\n{text}\nTake part under these terms with the rows of this site? [y/N] "
    return is_yes(ask_terminal(question, stopped))


def is_yes(answer: str) -> bool:
    """Tell if an answer says yes."""
    return answer.lower() in ("y", "yes")
