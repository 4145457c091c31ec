"""Warnings about an audit log: what a training that keeps its terms never leaves behind, and what its terms
allow though it protects little.

Promises: a training that kept its terms gives no warning of abuse, whatever was lost, restarted and asked
again in it, nor does a session that was refused; the most serious warnings come first.
Refuses: nothing. Terms that are not beside the log count as terms with the defaults of `colluding`, `on_loss`
and `keyholder_rows`, and of unknown depth. An aggregator that lies without leaving a trace here, in other
sums to other sites, say, is not found.
"""

import json
from collections.abc import Iterator
from itertools import combinations

from fedboost.errors import ConfigError
from fedboost.people.text import shown
from fedboost.privacy.masked.keys import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import fewest_shown
from fedboost.protocol.site import colluding_of
from fedboost.runtime.site.audit_entry import Admitted
from fedboost.runtime.site.audit_sessions import Session, is_after_end
from fedboost.runtime.site.audit_turns import turns_warnings
from fedboost.runtime.site.audit_warnings import (
    ASK,
    MAX_LISTED,
    AdmittedTerms,
    AuditWarning,
    Kind,
    counted,
    listed,
    lower,
)
from fedboost.terms.terms import Terms


def warnings_of(sessions: list[Session], admitted: AdmittedTerms) -> list[AuditWarning]:
    """All warnings about a log, the most serious first. admitted: the terms of the sessions that were
    admitted in it."""
    answered = [session for session in sessions if session.answers]
    names: dict[str, list[Session]] = {}
    for session in answered:
        names.setdefault(session.name, []).append(session)
    warnings: list[AuditWarning] = []
    for same_name in names.values():
        warnings += _name_warnings(same_name, admitted)
        digests: dict[str | None, list[Session]] = {}
        for session in same_name:
            digests.setdefault(session.digest, []).append(session)
        for digest, same_terms in digests.items():
            terms = admitted.get(digest or "")
            whole = Session(same_name[0].name, [part for session in same_terms for part in session.parts])
            warnings += turns_warnings(whole, terms if isinstance(terms, Terms) else None)
    warnings += _similar_groups(answered, admitted)
    warnings += _central_noise(answered)
    warnings += _requests(answered)
    warnings += _unread_terms(sessions, admitted)
    return sorted(warnings, key=lambda warning: [*Kind].index(warning.kind))


# ---- names and attempts -----------------------------------------------------------------------------


def _name_warnings(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    """Warnings about the sessions of one name."""
    name = sessions[0].name
    first = sessions[0].parts[0]
    if (first.attempt or 0) > 1 and _is_really_first(sessions[0]):
        yield AuditWarning(
            "first-attempt",
            (name,),
            f"session {shown(name)} begins in this log with attempt {first.attempt}",
            "what this site answered in the attempts before is not in this log, and cannot be compared",
            f"if the log was moved away meanwhile, audit the old one too; if not: {lower(ASK)} why",
        )
    digests = list(dict.fromkeys(session.digest or "" for session in sessions))
    if len(digests) > 1:
        yield AuditWarning(
            "other-terms",
            (name,),
            f"{len(digests)} different agreements were run under one session name, {shown(name)}: "
            f"{_differences([admitted.get(digest) for digest in digests])}",
            "answers left for each of them, though what was planned and counted for the session held for one",
            f"{ASK} and the analyst which terms were agreed on",
        )
    for session in sessions:
        if is_after_end(session, sessions):
            yield AuditWarning(
                "after-end",
                (name,),
                f"session {shown(name)} had ended and was answered again: "
                f"{counted(len(session.answers), 'answer')} too many",
                "anyone who asks a second time may ask anything else, down to the labels of single rows",
                f"{ASK} why",
            )
    for session in sessions:
        yield from _attempts(session)


def _differences(agreements: list[Terms | ConfigError | None]) -> str:
    """The settings in which agreements differ, with their values."""
    settings = [_settings(terms) for terms in agreements if isinstance(terms, Terms)]
    if len(settings) < len(agreements):
        return "how they differ is not known, as the terms are not all beside this log"
    names = dict.fromkeys(name for values in settings for name in values)
    differ = [name for name in names if len({values.get(name, "none") for values in settings}) > 1]
    several = [
        f"{name} was {', then '.join(shown(values.get(name, 'none')) for values in settings)}"
        for name in differ[:MAX_LISTED]
    ]
    more = len(differ) - len(several)
    return "; ".join([*several, f"and {counted(more, 'more setting')}"] if more else several)


def _settings(terms: Terms) -> dict[str, str]:
    """Every setting by its name in a terms file, its value in words."""
    values = terms.model_dump(mode="json", exclude_none=True)
    for table in ("columns", "noise"):
        values |= {f"{table}.{name}": value for name, value in values.pop(table, {}).items()}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _is_really_first(session: Session) -> bool:
    """Return whether the first attempt that is known is the first of the site. An old log has only those that
    were answered in: there, a first question that is not the session's first shows it."""
    part = session.parts[0]
    known = part.admitted is not None and part.admitted.attempt is not None
    return known or min(release.turn for release in part.releases) > 1


def _attempts(session: Session) -> Iterator[AuditWarning]:
    answered = 0
    for part in session.parts:
        if part.answers and answered and part.attempt is not None and part.attempt <= answered:
            yield AuditWarning(
                "attempt-again",
                (session.name,),
                f"session {shown(session.name)} was taken up again in attempt {part.attempt}, after answers "
                f"in attempt {answered}",
                "numbers of attempts only grow: this site was put back to an earlier state, or runs twice",
                f"the operator of this site knows; if it was neither: {lower(ASK)} why",
            )
        answered = max([answered, *(release.attempt for release in part.answers)])


# ---- between sessions -------------------------------------------------------------------------------


def _similar_groups(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    """Groups whose sums together show few parties: pairs of them, then three of which no two do."""
    groups: dict[frozenset[str], tuple[Session, int]] = {}
    for session in sessions:
        known = session.admitted
        protection = PROTECTIONS.get(known.protection) if known is not None else None
        terms = None if known is None else admitted.get(known.terms)
        if isinstance(terms, Terms):  # where parties hold different columns, it may hide less
            protection = terms.protection
        if known is not None and (protection is None or protection.hides):
            holders, colluding = _group(known, admitted)
            groups.setdefault(holders, (session, colluding))
    warned: list[set[frozenset[str]]] = []
    for number in (2, 3):
        for chosen in combinations(groups, number):
            colluding = max(groups[group][1] for group in chosen)
            shown_parties = fewest_shown(chosen, colluding)
            if not shown_parties or any(pair <= set(chosen) for pair in warned):
                continue
            warned.append(set(chosen))
            yield _groups_warning({group: groups[group][0] for group in chosen}, shown_parties, colluding)


def _groups_warning(
    groups: dict[frozenset[str], Session], shown_parties: frozenset[str], colluding: int
) -> AuditWarning:
    names, few = tuple(session.name for session in groups.values()), listed(sorted(shown_parties))
    (before, earlier), (after, later), *others = groups.items()
    observation = " and ".join(
        f"session {shown(session.name)} had {listed(sorted(alone))}, session {shown(other.name)} not"
        for session, other, alone in ((earlier, later, before - after), (later, earlier, after - before))
        if alone
    )
    meaning = (
        f"subtracting one result from the other gives the totals of {few} alone"
        if not others
        else f"their results together give the totals of {few} alone"
    )
    if colluding:
        meaning += f", of whom {colluding} may work with the aggregator"
    verb = "was" if len(shown_parties) == 1 else "were"
    innocent = "" if others else f". {_innocent(before, after)}; otherwise {few} {verb} singled out"
    if others:
        observation = f"sessions {listed([shown(name) for name in names])} had different parties"
    return AuditWarning(
        "similar-groups",
        names,
        observation,
        meaning + innocent,
        "ask the analyst. The operator of this site: name the parties to train with in `parties` of [policy]",
    )


def _innocent(before: frozenset[str], after: frozenset[str]) -> str:
    """The innocent way from the group of the first session to that of the second."""
    steps = {"dropped out": before - after, "joined": after - before}
    happened = " and ".join(f"{listed(sorted(who))} {step}" for step, who in steps.items() if who)
    return f"Nobody meant it if {happened}"


def _group(agreement: Admitted, admitted: AdmittedTerms) -> tuple[frozenset[str], int]:
    """The parties with rows of a session, and how many may collude."""
    terms = admitted.get(agreement.terms)
    if isinstance(terms, Terms):
        return frozenset(terms.holders), colluding_of(terms)
    return frozenset(agreement.parties), Group.of(agreement.parties).colluding


def _central_noise(sessions: list[Session]) -> Iterator[AuditWarning]:
    names = _names(
        [session for session in sessions if session.admitted and session.admitted.placement == "central"]
    )
    if names:
        yield AuditWarning(
            "central-noise",
            names,
            f"the aggregator added the noise of {_sessions(names)} itself, so it could read the sums before",
            "these sums can be of few rows, or of one; the epsilon holds for the model alone",
            'the operator of this site: without "central" in `placements` of [policy] it refuses such terms',
        )


def _requests(sessions: list[Session]) -> Iterator[AuditWarning]:
    requests: dict[str, list[Session]] = {}
    for session in sessions:
        for request in {part.admitted.request for part in session.parts if part.admitted} - {None}:
            requests.setdefault(str(request), []).append(session)
    for same in requests.values():
        names = _names(same)
        if len(names) > 1:
            yield AuditWarning(
                "request-again",
                names,
                f"one signed request of the analyst began {len(names)} sessions: {listed(list(names))}",
                "an analyst signs a request for each session: somebody used this one again",
                f"{ASK}, and the analyst, who asked for which",
            )


def _unread_terms(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    faults: dict[str, list[Session]] = {}
    for session in sessions:
        known = session.admitted
        if known is not None and known.attempt is not None:
            terms = admitted.get(known.terms)
            if isinstance(terms, ConfigError):
                faults.setdefault(str(terms), []).append(session)
    for fault, same in faults.items():
        names = _names(same)
        yield AuditWarning(
            "terms",
            names,
            f"the terms of {_sessions(names)}: {fault}",
            "what they allow is not known, and most of the other warnings cannot be given",
            "the operator of this site: put the file back where it was, from a copy or from the analyst: its "
            "SHA-256 is its name, so any copy that fits is right",
        )


# ---- words ------------------------------------------------------------------------------------------


def _names(sessions: list[Session]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(session.name for session in sessions))


def _sessions(names: tuple[str, ...]) -> str:
    return f"session{'s' if len(names) > 1 else ''} {listed(list(names))}"
