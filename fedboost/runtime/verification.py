"""A model's signatures, checked one by one.

Promises: every signature is checked, and each fault has its sentence; nothing is believed that the file says
of itself.
Refuses: nothing.
"""

from collections.abc import Collection
from datetime import UTC, datetime

from fedboost.errors import PeerError
from fedboost.people.facts import VerificationFacts
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.runtime.signed_model import SignedModel


def verified(
    model: SignedModel, source: str, roots: bytes, now: datetime, denied: Collection[str] = ()
) -> VerificationFacts:
    """Return what holds of a model's signatures for the consortium with these roots (PEM)."""
    faults = model.faults(roots, now, denied)
    analyst, asked, fault = "", "", ""
    if model.request is None:
        fault = "there is no analyst's request for it"
    elif model.attestations:
        try:
            trust = Trust(roots, frozenset(denied), lambda: now)
            analyst = key_exchange.check_request(trust, model.terms, model.request)
            asked = f"{datetime.fromtimestamp(model.request.time, UTC):%Y-%m-%d %H:%M} UTC"
        except (PeerError, OverflowError, ValueError, OSError) as error:
            fault = f"the analyst's request: {error}"
    return VerificationFacts(
        source,
        model.terms,
        model.fingerprint,
        len(model.booster.trees),
        {party: faults.get(party, "") for party in model.attestations},
        model.terms.signers,
        analyst,
        asked,
        fault,
    )
