"""Facts of a large consortium, as a console shows them: 186 sites, a session of 200 rounds, names that try to
be markup."""

import math

from fedboost.results.session import AggregatorState, EndedSession, LiveSession
from fedboost.version import VERSION
from fedboost.wire.messages import Member, SessionState, SessionStatus, Status

SITES, ROUNDS = 186, 200
ODD = '<img src=x onerror="alert(1)">'
NOW = 1_795_000_000
NAMES = (ODD, *(f"hospital-of-the-holy-spirit-{number:03}" for number in range(1, SITES)))
AWAY = NAMES[3:6]


def history(rounds=ROUNDS):
    """A row a round: a curve of training and of validation rows, seconds and bytes."""
    return [
        {
            "round": float(number),
            "logloss": 0.4 + 0.3 * math.exp(-number / 40),
            "validation-logloss": 0.45 + 0.25 * math.exp(-number / 30) + number / 4000,
            "seconds": 0.5 + 0.1 * math.sin(number),
            "bytes": 1e6,
        }
        for number in range(rounds)
    ]


def session(state=SessionState.RUNNING, name="session-00112233445566aa", awaited=AWAY[:1]):
    """The status of a session of all sites."""
    about = name, ODD, "ab" * 32, "boosting", "masked", ROUNDS // 2, ROUNDS
    return SessionStatus(state, *about, NOW - 900, NAMES, awaited)


def ended(number=0, reason=""):
    """A session that ended."""
    return EndedSession(
        name=f"session-{number:016x}",
        analyst="marie",
        terms="cd" * 32,
        program="boosting",
        protection="masked",
        parties=NAMES,
        ended=NOW - 1000 * number,
        seconds=321.0,
        reason=reason,
        rounds=history(),
        traffic=dict.fromkeys(NAMES, (12345678, 234567)),
        model_bytes=0 if reason else 1_234_567,
        has_report=not reason,
    )


def facts(rounds=ROUNDS // 2):
    """All of it."""
    members = [
        Member("party", name, 0 if name in AWAY else NOW - 5000, NOW - 60 * place, VERSION)
        for place, name in enumerate(NAMES)
    ]
    members.append(Member("analyst", "marie", NOW - 30, NOW - 30, VERSION))
    sessions = session(), session(SessionState.WAITING, "", AWAY)
    live = LiveSession.of(
        session(),
        status=session(),
        task="train",
        phase="waits for the answers to a question",
        turn=700,
        rounds=history(rounds),
        seconds=55.0,
        traffic=dict.fromkeys(NAMES, (12345678, 234567)),
        slowest=(NAMES[7], 321, 12.5),
    )
    over = [ended(1), ended(2, f"party {NAMES[4]} left: {ODD} " + "and more " * 30)]
    return AggregatorState(Status(VERSION, NOW - 9000, NOW, tuple(members), sessions), live, over)
