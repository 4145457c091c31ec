"""The identity of who calls the aggregator: the wire version they speak, their certificate, its role.

Refuses: callers without a certificate of the consortium, or with one of another role or name (Refused);
another wire version (ConfigError).
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from fedboost.errors import ConfigError, PeerError, Refused, quoted
from fedboost.privacy.identity.certificates import Identified
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Request
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import peer_of
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION

_NOT_SIGNED = "the terms are not signed by analyst {!r}, who submits them"
MAX_VERSION_LENGTH = 20
"""Characters of a version that are kept."""


def check_version(context: Any, who: str) -> None:
    """Raise ConfigError unless the caller speaks this wire version."""
    version = dict(context.invocation_metadata() or ()).get(channel.VERSION_KEY)
    if version != str(WIRE_VERSION):
        raise ConfigError(
            f"this aggregator speaks wire version {WIRE_VERSION}, the {who} "
            f"{version or 'names none'}; install the same version of fedboost"
        )


def plain_end(context: Any) -> str:
    """Return the address and port that a call comes from, such as 127.0.0.1:1234 or [::1]:1234."""
    return unquote(str(context.peer())).partition(":")[2]


def software_of(context: Any) -> str:
    """The version of the caller's software, as it says; '' if it says none."""
    version = dict(context.invocation_metadata() or ()).get(channel.SOFTWARE_KEY)
    return quoted(version, MAX_VERSION_LENGTH) if isinstance(version, str) else ""


def caller_of(bundle: Bundle | None, context: Any) -> Identified | None:
    """Return the caller's identity, None without keys. Raises Refused for a certificate of nobody here."""
    if bundle is None:
        return None
    try:
        return peer_of(context.auth_context(), bundle, datetime.now(UTC))
    except PeerError as error:
        raise Refused(str(error)) from None


def check_role(bundle: Bundle | None, context: Any, role: str, name: str | None = None) -> Identified | None:
    """Return the caller's identity, None without keys. Raises Refused unless the certificate is of this role,
    and of this name if there is one."""
    caller = caller_of(bundle, context)
    if caller is None:
        return None
    if caller.role != role:
        raise Refused(
            f"this is the certificate of {caller.role} {caller.name!r}: it may not act as {role}; "
            f"use a bundle of `fedboost keys {role}`"
        )
    if name is not None and caller.name != name:
        raise Refused(f"party {name!r} dials with the certificate of party {caller.name!r}")
    return caller


def check_asker(bundle: Bundle | None, context: Any, terms: Terms) -> None:
    """Raise Refused unless the caller may ask for a session under these terms: an analyst, or of a prediction
    the label holder."""
    holder = terms.vertical.label_holder
    if not terms.vertical.predicts:
        check_role(bundle, context, key_exchange.ANALYST)
    elif (caller := caller_of(bundle, context)) and (caller.role, caller.name) != (
        key_exchange.PARTY,
        holder,
    ):
        raise Refused(
            f"label holder {holder} alone may ask for a prediction, and this is the certificate of "
            f"{caller.role} {caller.name}"
        )


def party_name(bundle: Bundle | None, context: Any) -> str:
    """Return the name of the party that calls. ConfigError if it has none, Refused if it is not its own."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    try:
        name = bytes(metadata.get(channel.PARTY_KEY, b"")).decode()
    except UnicodeDecodeError:
        name = ""
    if not 0 < len(name) <= 256:
        raise ConfigError("a party must give its name")
    check_role(bundle, context, "party", name)
    return name


def check_signed(
    trust: Trust | None, terms: Terms, request: Request | None, analyst: str, wish: bytes
) -> None:
    """Raise Refused unless the analyst who calls signed this wish for these terms: parties refuse others.
    Without keys nothing is signed."""
    if trust is None:
        return
    try:
        signer = "" if request is None else key_exchange.check_request(trust, terms, request, wish)
    except PeerError as error:
        raise Refused(str(error)) from None
    if signer != analyst:
        raise Refused(_NOT_SIGNED.format(analyst))


def check_unread(trust: Trust | None, text: str, request: Request | None, analyst: str, wish: bytes) -> None:
    """Raise Refused unless whoever calls signed this wish for terms of this text, before they are read."""
    if trust is None:
        return
    try:
        signer = "" if request is None else key_exchange.check_unread(trust, text, request, wish)
    except PeerError as error:
        raise Refused(str(error)) from None
    if signer != analyst:
        raise Refused(_NOT_SIGNED.format(analyst))


def trust_of(bundle: Bundle | None) -> Trust | None:
    """The roots that key advertisements and signatures are checked by; None without keys."""
    return None if bundle is None else Trust(bundle.roots, bundle.denied, _clock)


def _clock() -> datetime:
    return datetime.now(UTC)
