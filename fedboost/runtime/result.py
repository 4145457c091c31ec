"""The result of a training: the model, its metrics and traffic."""

from dataclasses import dataclass, field

from fedboost.protocol.aggregator import AggregatorSession
from fedboost.runtime.model_file import Model
from fedboost.runtime.telemetry import Meter, Row


@dataclass(frozen=True)
class Result:
    """The result of a training.

    history: a row a round with `round`, the metrics by name (as an analyst gets them,
    `metrics.published`), `seconds`, and `bytes` (sent and received by all parties in that round); traffic:
    party to (bytes sent, bytes received), all turns together.
    """

    model: Model
    history: list[Row] = field(repr=False)
    traffic: dict[str, tuple[int, int]] = field(repr=False)


def finish(session: AggregatorSession, meter: Meter) -> Result:
    """The result of a session that is over; raises SessionFailed if it has no model."""
    if session.error is not None:
        raise session.error
    assert session.booster is not None
    rounds = tuple({"round": row.round, **row.published} for row in session.history)
    signed = {
        party: session.attestations[party]
        for party in session.terms.parties
        if party in session.attestations and session.attestations[party].signature
    }
    rosters, last = {}, session.terms.parties
    for row in session.history:
        if row.roster != last:
            rosters[row.round] = last = row.roster
    digest = session.digest if signed else b""
    request = session.request if signed else None
    model = Model(session.booster, session.terms, rounds, signed, digest, rosters, request)
    return Result(model, meter.history, meter.traffic)
