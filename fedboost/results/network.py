"""The result of `fedboost check --network`: the steps of the way to a server, with what to ask for."""

from collections.abc import Mapping
from typing import Any

from fedboost.results.check import ERROR, WARNING, Kind

OK = "ok"
_IT, _OPERATOR = "ask the IT department", "ask who runs the {role}"
_WSS = f"if that is not possible, {_OPERATOR} for an address that begins with wss://"
_OPEN = f"{_OPERATOR} whether the address is right and it runs, and {_IT}"
_CLOCK = f"check the address and this machine's clock; if both are right, {_OPERATOR}"
KINDS = {
    "name-ok": Kind(OK, "{name} is {found}"),
    "name": Kind(ERROR, "this machine cannot resolve the name {name} (DNS)",
        f"check the spelling; then {_IT} to make the name known here, or for the address of a proxy"),
    "tcp-ok": Kind(OK, "{first} accepts connections"),
    "tcp": Kind(ERROR, "no connection to {first} ({found}): nothing listens there, or a firewall stops it",
        f"{_OPEN} to allow outgoing TCP to {{first}}, or for the address of a proxy"),
    "proxy-none": Kind(OK, "none is used"),
    "proxy-ok": Kind(OK, "{first}, from {source}, connects to {host}:{port}"),
    "proxy-login": Kind(ERROR, "from {source}: {found}",
        f"{_IT} for a user and password of Basic authentication (NTLM and Kerberos do not work)"),
    "proxy-unreachable": Kind(ERROR, "from {source}: {found} as a proxy", f"{_IT} for a proxy's address"),
    "proxy": Kind(ERROR, "from {source}: {found}", f"{_OPEN} to allow CONNECT to {{host}}:{{port}}"),
    "tls-ok": Kind(OK, "the certificate was issued by {found}"),
    "tls-failed": Kind(ERROR, "{host}:{port} accepts connections, but does not answer with TLS ({found})",
        f"{_OPEN} whether a firewall or proxy stops TLS to {{host}}:{{port}}"),
    "tls-intercepted": Kind(ERROR, "intercepted: {found} issued the certificate, not the consortium",
        "if this is a load balancer's address, put wss:// or grpcs:// before it; otherwise "
        f"{_IT} to exempt {{host}}:{{port}} from TLS inspection; {_WSS}"),
    "tls-untrusted": Kind(ERROR, "probably intercepted: {found} issued the certificate, but is not trusted",
        f"{_IT} whether it is theirs; if so, set its certificate (PEM) as `ca`, or as SSL_CERT_FILE"),
    "tls-own": Kind(ERROR, "the {role} itself answers here", "remove wss:// or grpcs:// before {host}"),
    "tls-expired": Kind(ERROR, "the certificate, issued by {found}, has expired", _CLOCK),
    "tls": Kind(ERROR, "the certificate, issued by {found}, is not valid for {host}", _CLOCK),
    "http2-ok": Kind(OK, "is offered"),
    "http2-unneeded": Kind(OK, "is not needed by wss://"),
    "http2": Kind(ERROR, "is not offered, but this address needs it",
        f"{_IT} to let HTTP/2 pass to {{host}}:{{port}}; {_WSS}, which needs only HTTP/1.1"),
    "tunnel-ok": Kind(OK, "opens"),
    "tunnel": Kind(ERROR, "{found}", f"{_OPEN} to let WebSockets or gRPC pass to {{host}}:{{port}}"),
    "server-ok": Kind(OK, "answers, with a certificate of the consortium"),
    "server": Kind(ERROR, "{found}", _OPERATOR),
    "clock-ok": Kind(OK, "differs by {found} s from that of the {role}"),
    "clock": Kind(WARNING, "is {found} that of the {role}",
        f"{_IT} to synchronise this machine's clock (NTP); if it is right, tell who runs the {{role}}"),
    "idle-ok": Kind(OK, "a silent connection, with a keepalive every 20 s, lived for {found} s"),
    "idle-short": Kind(ERROR, "a silent connection was cut after {found} s; a keepalive is sent every 20 s",
        f"{_IT} to keep silent connections to {{host}}:{{port}} open for 60 s or longer"),
    "idle": Kind(WARNING, "a connection was cut after {found} s, despite keepalives; fedboost connects again",
        f"{_IT} not to limit how long connections to {{host}}:{{port}} last"),
}  # fmt: skip
"""Kind of a step -> severity, sentence and advice. A kind begins with the name of the step, whose own entry
is for all other kinds."""


def step_of(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step as JSON. facts: values by name; `found` is what was found."""
    step = kind.partition("-")[0]
    known = KINDS.get(kind) or KINDS[step]
    texts = {"sentence": known.sentence, "advice": known.advice}
    filled = {key: text.format(**facts) for key, text in texts.items()}
    return {"event": "step", "step": step, "kind": kind, "severity": known.severity, **facts, **filled}
