"""The status of an aggregator: who is connected, which sessions there are, and for whom they wait.

Promises: an analyst sees the members and all sessions; a party sees itself, the sessions that name it, and
the members of those. Nothing here was made of rows.
Refuses: callers without a certificate of the consortium (Refused), or of another wire version (ConfigError).
"""

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from fedboost.errors import FedboostError
from fedboost.privacy.identity import Identified
from fedboost.runtime.aggregator.analysts import Analysts
from fedboost.runtime.aggregator.limits import Peer
from fedboost.runtime.aggregator.parties import Admission, ConnectedParties, caller_of, check_version, refuse
from fedboost.runtime.aggregator.sessions import ActiveSession, Sessions
from fedboost.runtime.net.keys import Bundle
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.wire import messages as wire
from fedboost.wire.messages import Member, SessionState, SessionStatus, Status, encode_status


class StatusOffice:
    """The method Status of the service."""

    def __init__(
        self,
        bundle: Bundle | None,
        admission: Admission,
        sessions: Sessions,
        connected: ConnectedParties,
        analysts: Analysts,
    ) -> None:
        self._bundle = bundle
        self._admission = admission
        self._sessions = sessions
        self._connected = connected
        self._analysts = analysts
        self._since = int(time.time())

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer one call."""
        await self._admission.only_message(requests, context, peer)
        try:
            check_version(context, "caller")
            caller = caller_of(self._bundle, context)
        except FedboostError as error:
            await refuse(context, error)
        await context.write(encode_status(self.seen_by(caller)))

    def seen_by(self, caller: Identified | None) -> Status:
        """The status as this caller may see it; without keys everybody may see all."""
        sessions = [*self._all_sessions()][: wire.MAX_SESSIONS]
        members = [*self._all_members(sessions)]
        others = 0
        if caller is not None and caller.role == "party":
            own = [session for session in sessions if caller.name in session.parties]
            known = {("party", caller.name)}
            known |= {("party", party) for session in own for party in session.parties}
            known |= {("analyst", session.analyst) for session in own}
            members = [member for member in members if (member.role, member.name) in known]
            sessions, others = own, len(sessions) - len(own)
        about = VERSION, self._since, int(time.time())
        return Status(*about, tuple(members[: wire.MAX_MEMBERS]), tuple(sessions), others)

    def _all_members(self, sessions: Iterable[SessionStatus]) -> Iterator[Member]:
        """The parties that are connected, those that were, those that a session waits for, and the analysts
        that follow a session or wait for one."""
        connected = self._connected
        for party, arrival in connected.arrivals.items():
            yield Member("party", party, arrival.since, arrival.since, arrival.version)
        awaited = (party for session in sessions for party in session.parties)
        for party in sorted({*connected.seen.times, *awaited} - connected.names):
            yield Member("party", party, 0, connected.seen.last(party))
        for analyst, arrival in self._analysts.here.values():
            yield Member("analyst", analyst, arrival.since, arrival.since, arrival.version)

    def _all_sessions(self) -> Iterator[SessionStatus]:
        sessions = self._sessions
        if sessions.active is not None:
            yield self.of(sessions.active, SessionState.RUNNING)
        for session in sessions.unfinished:
            yield self.of(session, SessionState.WAITING)
        for waiter in self._analysts.waiters:
            absent = self._connected.absent(waiter.terms.parties)
            yield _status(SessionState.WAITING, "", waiter.analyst, waiter.terms, 0, waiter.since, absent)
        for session in sessions.finished:
            yield self.of(session, SessionState.FINISHED)

    def of(self, session: ActiveSession, state: SessionState) -> SessionStatus:
        """The status of a session."""
        late = session.session.awaited if state is SessionState.RUNNING else ()
        absent = {*self._connected.absent(late), *session.pace.slow}
        name, done = session.session.name, len(session.session.history)
        awaited = [party for party in late if party in absent]
        return _status(state, name, session.analyst_name, session.terms, done, session.since, awaited)


def _status(
    state: SessionState,
    name: str,
    analyst: str,
    terms: Terms,
    done: int,
    since: int,
    awaited: Iterable[str],
) -> SessionStatus:
    about = terms.digest, terms.session.program, terms.hiding.protection, done, terms.trees.rounds, since
    return SessionStatus(state, name, analyst, *about, terms.parties, tuple(awaited))
