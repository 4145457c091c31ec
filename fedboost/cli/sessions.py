"""Sessions that end with something else than a model: asked for, and waited for.

Promises: Ctrl-C ends the session at the aggregator; it is said who is waited for, and what is not hidden.
Refuses: what the session refuses.
"""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedboost.cli.progress import Draw
    from fedboost.people.text import Block
    from fedboost.runtime.analyst import Training
    from fedboost.terms.terms import Terms

SECONDS = 0.2
"""Between two looks whether the session is over."""


def ended(
    aggregator: str,
    keys: Path | None,
    insecure_loopback: bool,
    terms: "Terms",
    wait: float,
    draw: "Draw | None" = None,
) -> "Training":
    """Ask an aggregator for a session under these terms; return it once it is over. draw: called with each
    round, where there are any."""
    from fedboost.cli.output import notice
    from fedboost.cli.progress import notice_not_hidden
    from fedboost.people.status import waiting
    from fedboost.runtime.analyst import connect

    session = connect(aggregator, keys, insecure_loopback).train(
        terms, wait, lambda parties: notice(waiting(parties, session.absent))
    )
    fault: list[Exception] = []

    def follow() -> None:
        try:
            for row in session:
                if draw is not None:
                    draw(row)
            _ = session.model
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            fault.append(error)

    # Not in this thread: Ctrl-C could come with a lock of gRPC held, which to stop the session needs.
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(SECONDS)
    except KeyboardInterrupt:
        session.stop()
        raise
    if fault:
        raise fault[0]
    notice_not_hidden(terms)
    return session


def show_result(json: bool, result: Any, words: "Iterable[Block]", known: Any, report: Path | None) -> None:
    """Show the result of a session, then write its page (`known.report`), if one is asked for: one that
    cannot be written loses nothing of what the session cost."""
    from fedboost.cli.output import show

    show(json, [result], words)
    if report is not None:
        known.report(report)


def save_terms_of(model: Path, terms: "Terms", file: Path, force: bool) -> None:
    """Write the terms of a session about a model for sites to approve, with the path of the model in them."""
    from fedboost.cli.output import notice
    from fedboost.runtime.files import check_writable, write_atomically
    from fedboost.runtime.terms_file import terms_to_toml

    check_writable(file, model, force=force)
    write_atomically(file, terms_to_toml(terms, model=os.path.relpath(model, file.parent)).encode())
    notice(f"{file}: for sites to approve, together with {model}")


def check_asked(aggregator: str | None, save_terms: Path | None) -> None:
    """ConfigError unless an aggregator is to be asked, or terms to be written."""
    from fedboost.errors import ConfigError
    from fedboost.runtime.config import check_address

    if aggregator is None and save_terms is None:
        raise ConfigError("give --aggregator, or --save-terms to write the terms for sites to approve")
    if aggregator is not None:
        check_address(aggregator, "--aggregator")


def check_report(
    report: Path | None,
    aggregator: str | None,
    inputs: list[Path | None],
    save_terms: Path | None,
    force: bool,
) -> None:
    """ConfigError unless a page of the result can be written later, if one is asked for."""
    from fedboost.cli.pages import check_page
    from fedboost.errors import ConfigError

    if report is not None and aggregator is None:
        raise ConfigError("--report is of a result: give --aggregator")
    outputs = () if save_terms is None else (save_terms,)
    check_page(report, *filter(None, inputs), force=force, outputs=outputs)
