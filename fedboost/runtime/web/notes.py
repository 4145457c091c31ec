"""The refusals of pages in the log of a process, bounded as those of its other callers are."""

from collections.abc import Callable

from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.web.guard import Asker, Refusal


def noting(refusals: Refusals, event: str) -> Callable[[Asker, Refusal], None]:
    """What notes a refusal. event: its name in the log."""

    def note(asker: Asker, refusal: Refusal) -> None:
        peer, end = f"a client from {asker.address}", f"{asker.address}:{asker.port}"
        refusals.note(event, peer, f"{refusal.status}: {refusal.reason}", address=end, asked=asker.what)

    return note
