"""Sessions that end with something else than a model: asked for, and waited for.

Promises: Ctrl-C ends the session at the aggregator.
Refuses: what the session refuses.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedboost.runtime.analyst import Training
    from fedboost.terms.terms import Terms


def ended(
    aggregator: str, keys: Path | None, insecure_loopback: bool, terms: "Terms", wait: float
) -> "Training":
    """Ask an aggregator for a session under these terms; return it once it is over."""
    from fedboost.cli.output import notice
    from fedboost.people.status import waiting
    from fedboost.runtime.analyst import connect

    session = connect(aggregator, keys, insecure_loopback).train(
        terms, wait, lambda parties: notice(waiting(parties, session.absent))
    )
    try:
        assert session.model is not None  # waits for it
    except KeyboardInterrupt:
        session.stop()
        raise
    return session
