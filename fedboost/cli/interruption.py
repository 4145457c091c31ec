"""Ctrl-C at a training: once ends it with the rounds so far, twice stops it at once.

Promises: before the first round is done, and the second time, Ctrl-C is a KeyboardInterrupt as ever; a Ctrl-C
that whoever started the command has switched off stays off.
Refuses: nothing.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fedboost.cli.output import notice


class Interruption:
    """The wish for no more rounds: `asked` once Ctrl-C was pressed. `finish` is then called, in a thread of
    its own; `count` is called after each round."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.asked = False
        self._finish = finish
        self._rounds = 0
        self._threads: list[threading.Thread] = []

    def count(self) -> None:
        """Count a round that is done."""
        self._rounds += 1

    def take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; KeyboardInterrupt if there is nothing to keep, or at the second."""
        if self.asked or not self._rounds:
            raise KeyboardInterrupt
        self.asked = True
        # Not here: the signal may have come in the midst of a print, or with a lock of gRPC held.
        self._threads.append(threading.Thread(target=self._tell, daemon=True))
        self._threads[0].start()

    def wait(self) -> None:
        """Wait until what was begun is done."""
        for thread in self._threads:
            thread.join()

    def _tell(self) -> None:
        notice(
            f"stopping after the round under way ({self._rounds} done); Ctrl-C again to stop at once, with "
            f"nothing saved"
        )
        self._finish()


@contextmanager
def finish_at_interrupt(finish: Callable[[], None] = lambda: None) -> Iterator[Interruption]:
    """End a training with the rounds so far at the first Ctrl-C: `finish` asks for that."""
    interruption = Interruption(finish)
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, interruption.take)
    try:
        yield interruption
        interruption.wait()
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
