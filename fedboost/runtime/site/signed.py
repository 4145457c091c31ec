"""Who signed what an aggregator hands on to a site.

Refuses: terms that nobody signed as they were sent, before they are read (PeerError, Refused): to read them
may take long, and an aggregator may send what it likes.
"""

from collections.abc import Callable

from fedboost.errors import PeerError, Refused
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import SESSION, Credentials
from fedboost.protocol.messages import Offer, Request


def check_unread(
    party: str, credentials: Credentials | None, text: str, request: Request | None, wish: bytes = SESSION
) -> None:
    """Raise PeerError or Refused unless terms of this text are signed for this wish. Without keys nothing
    is."""
    if credentials is None:
        return
    if request is None:
        raise Refused(f"party {party}: the terms are signed by no analyst")
    key_exchange.check_unread(credentials, text, request, wish)


def vouched(
    party: str, credentials: Callable[[], Credentials | None], text: str, request: Request | None
) -> None:
    """Raise PeerError or Refused unless terms of this text are signed for a session, by what is trusted
    now."""
    check_unread(party, credentials(), text, request)


def analyst_of(offer: Offer, credentials: Credentials | None) -> str:
    """The analyst who signed an offer; '' where nobody did, for which the session leaves it."""
    if credentials is None or offer.request is None:
        return ""
    try:
        return key_exchange.check_request(credentials, offer.terms, offer.request)
    except PeerError:
        return ""
