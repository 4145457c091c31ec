"""Facts as JSON: plain values, one object a line, for scripts.

Promises: the keys of an object never change their meaning.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedboost.views.audit import AuditFacts, ReleaseFacts, SessionFacts, WarningFacts
from fedboost.views.facts import PrivacyFacts

Object = Mapping[str, Any]


def audit(facts: AuditFacts) -> Iterator[Object]:
    """Yield the warnings of an audit, its sessions, and what was verified."""
    for warning in facts.warnings:
        yield _warning(warning)
    for session in facts.sessions:
        yield _session(session)
        for release in session.releases if facts.listed else ():
            yield {"event": "released", **_release(release)}
    for asked in facts.checks:
        yield {"event": "checked", **vars(asked)}
    expected = {} if facts.expected is None else {"expected": facts.expected}
    verified = {"entries": facts.entries, "warnings": len(facts.warnings), "hash": facts.last_hash}
    earlier = {"earlier": facts.earlier} if facts.earlier else {}
    yield {"event": "verified", **verified, **expected, **earlier}


def _warning(warning: WarningFacts) -> Object:
    return {
        "event": "warning",
        "kind": warning.name,
        "rule": warning.rule,
        "sessions": warning.sessions,
        "seen": warning.seen,
        "meaning": warning.meaning,
        "action": warning.action,
    }


def _release(release: ReleaseFacts) -> Object:
    return {name: value for name, value in vars(release).items() if name != "again"}


def _relayed(session: SessionFacts) -> list[Object]:
    return [
        {
            "what": what,
            "to": receivers,
            "times": len(relays),
            "rows": max(relay.rows for relay in relays),
            "bytes": sum(relay.size for relay in relays),
        }
        for (what, receivers), relays in session.by_receivers.items()
    ]


def _session(session: SessionFacts) -> Object:
    agreement = session.agreement
    answers = {
        query: {
            "times": len(releases),
            "integers": sum(release.cells for release in releases),
            "bytes": sum(release.bytes for release in releases),
        }
        for query, releases in session.by_query.items()
    }
    return {
        "event": "session",
        "session": session.name,
        "begin": session.begin,
        "end": session.end,
        "terms": agreement.terms if agreement else None,
        "analyst": agreement.analyst if agreement else session.ending.analyst,
        "request": agreement.request if agreement else None,
        "attempts": session.attempts,
        "taken_up": session.taken_up,
        "parties": agreement.parties if agreement else None,
        "columns": agreement.columns if agreement else None,
        "protections": session.protections,
        "placement": agreement.placement if agreement else None,
        "released": answers,
        **({"relayed": _relayed(session)} if session.relays else {}),
        "cost": session.cost,
        "epsilon": session.epsilon,
        "smallest_roster": len(session.smallest_roster) if session.releases else None,
        "ended": session.ending.closed if session.ending.over else None,
    }


def spent(datasets: Sequence[PrivacyFacts]) -> Iterator[Object]:
    """Yield the privacy that was spent of each dataset."""
    yield from map(asdict, datasets)
