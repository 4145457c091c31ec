"""The training of a demo: processes on loopback, and what is said of them.

Promises: an aggregator and the parties run as processes of their own.
Refuses: nothing itself.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedboost.people.facts import Traffic
    from fedboost.runtime.local.cluster import LocalCluster
    from fedboost.runtime.model import Model
    from fedboost.runtime.party_model import PartyModel
    from fedboost.terms.terms import Terms


@contextmanager
def processes(
    terms: "Terms",
    files: Mapping[str, Path | None],
    folder: Path,
    say: Callable[[str], None],
    warm_up: Callable[[], None] = lambda: None,
) -> "Iterator[LocalCluster]":
    """Start the processes of a demo, once kernels are compiled; inside they run. say: prints a line; warm_up:
    compiles kernels that not all trainings need."""
    from fedboost.cli.progress import notice_not_hidden
    from fedboost.runtime.local.cluster import LocalCluster
    from fedboost.runtime.local.demo import empty_state
    from fedboost.runtime.local.warm_up import compile_usual

    compile_usual(say)
    warm_up()
    say("each site approves the terms, as a person there does by `fedboost approve`")
    say("aggregator and parties start as processes of their own, on loopback; the analyst submits terms")
    notice_not_hidden(terms)
    with LocalCluster(folder, files, approved=terms, state=empty_state(folder)) as consortium:
        yield consortium


def train(consortium: "LocalCluster", terms: "Terms", json: bool) -> "tuple[Model | PartyModel, Traffic]":
    """Train over gRPC; return what the analyst gets, and the traffic."""
    from fedboost.cli.interruption import finish_at_interrupt
    from fedboost.cli.progress import progress

    session = consortium.analyst.train(terms)
    with finish_at_interrupt(session.finish) as interruption, progress(terms, json) as draw:
        for row in session:
            draw(row)
            interruption.count()
    return session.model, session.traffic
