"""The facts of an audit: the sessions of a log and the warnings about them, as people and scripts get them.

Promises: nothing but what the log says and its terms allow.
Refuses: a log whose terms cannot be looked for (ConfigError).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedboost.errors import ConfigError
from fedboost.holders.column_rows import ROW_SET
from fedboost.holders.gradients import ENCRYPTED, GRADIENTS
from fedboost.people.audit import (
    AgreementFacts,
    AuditFacts,
    ChecksFacts,
    OwnFacts,
    ReleaseFacts,
    SessionEnd,
    SessionFacts,
    SessionRank,
    WarningFacts,
)
from fedboost.people.text import delimited
from fedboost.protocol.site import Relayed
from fedboost.runtime.site.audit import read_admitted
from fedboost.runtime.site.audit_entry import BEFORE_THE_FIRST, Admitted, Checked, Entry
from fedboost.runtime.site.audit_rules import warnings_of
from fedboost.runtime.site.audit_sessions import Session, is_after_end
from fedboost.runtime.site.audit_turns import allowed_questions
from fedboost.runtime.site.audit_warnings import MEANINGS, AdmittedTerms, AuditWarning
from fedboost.terms.terms import Terms

OF_COMMON_ROWS = frozenset({ROW_SET, GRADIENTS, ENCRYPTED})
"""Kinds of relays of a training that tell of all rows in common."""


def audit_facts(
    log: Path,
    entries: Sequence[Entry],
    sessions: list[Session],
    expected: int | None,
    name: str | None,
    last: int | None = None,
) -> AuditFacts:
    """Return the facts of a log. expected: the number of the entry whose hash was expected; name: of the
    session to list answer by answer, unless it is all of them in short; last: how many of the newest sessions
    those are."""
    admitted = _terms_of(sessions, log)
    first = 0 if last is None else max(len(sessions) - last, 0)
    shown = {session.name for session in sessions[first:]} if name is None else {name}
    warnings = [warning for warning in warnings_of(sessions, admitted) if shown & {*warning.sessions}]
    parties = {entry.event.party for entry in entries if isinstance(entry.event, Admitted)} - {None}
    return AuditFacts(
        log=str(log),
        entries=len(entries),
        last_hash=entries[-1].hash if entries else BEFORE_THE_FIRST,
        expected=expected,
        parties=sorted(map(str, parties)),
        warnings=[_warning_facts(warning) for warning in warnings],
        sessions=[
            _session_facts(number, sessions, warnings, admitted)
            for number, session in enumerate(sessions)
            if number >= first and name in (None, session.name)
        ],
        listed=name is not None,
        earlier=first,
        checks=_checks_of(entries) if name is None and last is None else (),
    )


def _checks_of(entries: Iterable[Entry]) -> list[ChecksFacts]:
    """Return the checks of each day and analyst, in the order of the first of each."""
    asked: dict[tuple[str, str], dict[str, bool]] = {}
    for entry in entries:
        if isinstance(event := entry.event, Checked):
            asked.setdefault((entry.time[:10], event.analyst or ""), {})[event.terms] = event.would
    return [ChecksFacts(*who, len(answers), sum(answers.values())) for who, answers in asked.items()]


def _terms_of(sessions: list[Session], log: Path) -> dict[str, Terms | ConfigError]:
    """Return the terms of sessions, by digest."""
    terms: dict[str, Terms | ConfigError] = {}
    for digest in {session.admitted.terms for session in sessions if session.admitted}:
        try:
            terms[digest] = read_admitted(log, digest)
        except ConfigError as error:
            terms[digest] = error
    return terms


def _warning_facts(warning: AuditWarning) -> WarningFacts:
    kind = warning.kind
    names = kind.value, kind.name.lower(), MEANINGS[kind]
    return WarningFacts(*names, warning.rule, warning.sessions, *warning.sentences)


def _session_facts(
    index: int, sessions: list[Session], warnings: Sequence[AuditWarning], admitted: AdmittedTerms
) -> SessionFacts:
    """Return what the log says of a session, and what all its sessions say of it."""
    session = sessions[index]
    names = [other.name for other in sessions]
    digests = [other.digest for other in sessions if other.releases]
    terms, again = admitted.get(session.digest or ""), session.again
    ids = {id(answer) for answer, _ in again}
    return SessionFacts(
        name=session.name,
        rank=SessionRank(
            number=names[: index + 1].count(session.name),
            total=names.count(session.name),
            after_end=is_after_end(session, sessions),
            under_terms=digests.count(session.digest) if session.releases else 0,
            warnings=tuple(n for n, warning in enumerate(warnings, 1) if session.name in warning.sessions),
        ),
        begin=session.begin,
        end=session.end,
        allowed=allowed_questions(terms) if isinstance(terms, Terms) else {},
        agreement=None if session.admitted is None else _agreement_facts(session.admitted),
        attempts=session.attempts,
        taken_up=len(session.parts),
        releases=[
            ReleaseFacts(**release.model_dump(exclude={"kind"}), again=id(release) in ids)
            for release in session.releases
        ],
        relays=[
            Relayed(relay.session, relay.turn, relay.attempt, relay.what, relay.to, relay.rows, relay.bytes)
            for relay in session.relays
        ],
        again_elsewhere=sum(set(answer.roster) != set(first.roster) for answer, first in again),
        protections=_protections(session, terms),
        own=_own_facts(session, terms),
        cost=session.cost,
        epsilon=session.epsilon,
        ending=_end_facts(session),
    )


def _protections(session: Session, terms: Terms | ConfigError | None) -> Sequence[str]:
    """Return the protections under which something left; of a prediction the one that its terms name, as
    nothing that is told there is sealed."""
    if isinstance(terms, Terms) and terms.vertical.predicts:
        return [terms.hiding.protection]
    return session.protections


def _own_facts(session: Session, terms: Terms | ConfigError | None) -> OwnFacts | None:
    """Return what the site had of its own, where the parties held different columns."""
    if not isinstance(terms, Terms):
        return OwnFacts() if session.relays else None
    if not terms.blocks:
        return None
    admitted = session.admitted
    party = None if admitted is None else admitted.party
    hides, in_common = terms.hides_columns, None
    if terms.vertical.aligns and not (terms.vertical.takes_all_rows or terms.vertical.predicts):
        rows = (relay.rows for relay in session.relays if relay.what in OF_COMMON_ROWS)
        in_common = max(rows, default=None)
    if admitted is None or party not in terms.parties:
        return OwnFacts(hides=hides, in_common=in_common)
    columns, here = terms.blocks.columns_of(str(party)), admitted.names or {}
    words = [
        delimited(name) + (f" (here {delimited(here[name])})" if name in here else "")
        for name in (*columns.others, *columns.features)
    ]
    return OwnFacts(words, terms.blocks.has_labels(str(party)), hides, in_common)


def _end_facts(session: Session) -> SessionEnd:
    ended = session.ended
    closed, analyst = (ended.reason, ended.analyst) if ended else (None, None)
    return SessionEnd(session.state, session.over, closed, analyst)


def _agreement_facts(admitted: Admitted) -> AgreementFacts:
    return AgreementFacts(
        **admitted.model_dump(exclude={"kind", "session", "protection", "party", "dataset", "names"})
        | {"task": admitted.does}
    )
