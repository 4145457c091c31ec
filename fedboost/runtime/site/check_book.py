"""The checks of terms that a site answered: counted, in its audit log, and on its page.

Promises: a check is in the audit log before its answer leaves: the analyst, the terms and whether this site
would take part, once a day for the same answer.
Refuses: checks of more different terms in a day than `MAX_CHECKS_A_DAY`, of one analyst (Refused); a log that
cannot be written (DurabilityError, Refused).
"""

import time
from collections.abc import Callable, Sequence

from fedboost.errors import Refused
from fedboost.runtime.site.audit import AuditLog
from fedboost.terms.terms import Terms

MAX_CHECKS_A_DAY = 100
"""Different terms that are checked for one analyst in a day (UTC): each is a line in the audit log, of half a
kilobyte, and tells a little of the site's policy and of its columns' names."""

Told = Callable[[Terms, str, Sequence[str]], None]
"""Takes terms that were checked, the analyst who signed them, and what this site has against them."""


def today() -> str:
    """The day, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


class CheckBook:
    """The checks of one process, by analyst; '' where analysts have no keys. told: is told of each."""

    def __init__(self, audit: AuditLog | None, told: Told) -> None:
        self._audit = audit
        self._told = told
        self._day = ""
        self._answers: dict[str, dict[str, set[bool]]] = {}
        """By analyst and digest of terms what was answered on this day."""

    def check(self, party: str, terms: Terms, analyst: str) -> None:
        """Raise Refused for more different terms of this analyst than a day has."""
        if (day := today()) != self._day:
            self._day, self._answers = day, {}
        answers = self._answers.setdefault(analyst, {})
        if terms.digest not in answers and len(answers) >= MAX_CHECKS_A_DAY:
            raise Refused(
                f"party {party}: it answers checks of {MAX_CHECKS_A_DAY} different terms of an analyst in a "
                f"day; ask again tomorrow, or begin a session"
            )

    def note(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Note a check that is about to be answered. DurabilityError, Refused."""
        answers = self._answers.setdefault(analyst, {}).setdefault(terms.digest, set())
        if (would := not reasons) not in answers:
            if self._audit is not None:
                self._audit.checked(terms.digest, analyst, would)
            answers.add(would)
        self._told(terms, analyst, reasons)
