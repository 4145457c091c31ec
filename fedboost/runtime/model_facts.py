"""fedboost's own facts in the attributes of a model file: terms, metrics, signatures.

Refuses: attributes that are not such facts (ConfigError).
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedboost import __version__
from fedboost.errors import Altered, ConfigError
from fedboost.people.privacy_report import report_of
from fedboost.protocol.messages import Attest, Request
from fedboost.terms.terms import Terms

_PREFIX = "fedboost."
TERMS = _PREFIX + "terms"
"""The attribute of a model file that has the terms."""
SUMMARY = _PREFIX + "summary"
"""The attribute that has what the program said beside the trees."""
SIGNATURES = _PREFIX + "attestations"
"""The attribute that has the signatures of the parties."""

_LARGEST = 1 << 1000
_XGBOOSTS = ("best_iteration",)
"""Attributes by which XGBoost's estimators leave trees out of a prediction."""


@dataclass(frozen=True)
class Facts:
    """Facts of a trained model beside its trees; `Model` says what each is."""

    terms: Terms
    rounds: tuple[Mapping[str, float], ...]
    attestations: Mapping[str, Attest]
    session: bytes
    rosters: Mapping[int, tuple[str, ...]]
    request: Request | None
    salts: Mapping[str, bytes]
    summary: Mapping[str, Any]

    def to_attributes(self, session: bool = True) -> dict[str, str]:
        """The attributes that hold these facts, with those of the session unless they are kept elsewhere."""
        terms = self.terms
        return {
            _PREFIX + "version": __version__,
            TERMS: terms.canonical(),
            _PREFIX + "terms_digest": terms.digest,
            _PREFIX + "protection": terms.hiding.protection,
            _PREFIX + "parties": json.dumps(terms.parties),
            _PREFIX + "history": json.dumps([dict(row) for row in self.rounds]),
            **({_PREFIX + "rosters": json.dumps(dict(self.rosters))} if self.rosters else {}),
            **({SUMMARY: json.dumps(self.summary)} if self.summary else {}),
            **({_PREFIX + "privacy": json.dumps(report_of(terms))} if terms.noise is not None else {}),
            **(self.session_attributes() if session else {}),
        }

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, str], source: str) -> "Facts":
        """The facts in the attributes of a model file. ConfigError if they are not there."""
        try:
            terms = Terms.from_canonical(attributes[TERMS])
            history = json.loads(attributes[_PREFIX + "history"])
            rounds = tuple({str(name): _number(value) for name, value in row.items()} for row in history)
            changes = json.loads(attributes.get(_PREFIX + "rosters", "{}"))
            rosters = {int(first): tuple(map(str, roster)) for first, roster in changes.items()}
            signed = session_of(attributes)
            summary = dict(json.loads(attributes.get(SUMMARY, "{}")))
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{source}: an XGBoost model without fedboost's facts ({error})") from None
        of_session = signed.attestations, signed.session, rosters, signed.request, signed.salts
        facts = cls(terms, rounds, *of_session, summary)
        facts._check_repeated(attributes, source)
        return facts

    def _check_repeated(self, attributes: Mapping[str, str], source: str) -> None:
        """Raise Altered for attributes that say something else than the terms, or that XGBoost goes by."""
        ours = self.to_attributes(session=False)
        repeated = (_PREFIX + name for name in ("terms_digest", "protection", "parties"))
        odd = [name for name in repeated if attributes.get(name, ours[name]) != ours[name]]
        odd += [name for name in _XGBOOSTS if name in attributes]
        if odd:
            raise Altered(f"{source}: not as fedboost wrote it: its attribute {odd[0]} was changed or added")

    def session_attributes(self) -> dict[str, str]:
        """The attributes that two sessions of the same terms differ in; none where nobody signed."""
        if not self.attestations:
            return {}
        signed = {
            party: {
                "turns": attest.turns,
                "transcript": attest.transcript.hex(),
                "structure": attest.structure.hex(),
                "certificate": base64.b64encode(attest.certificate).decode(),
                "signature": base64.b64encode(attest.signature).decode(),
                **({"thresholds": attest.thresholds.hex()} if attest.thresholds else {}),
                **({"part": attest.part.hex()} if attest.part else {}),
            }
            for party, attest in self.attestations.items()
        }
        facts = {SIGNATURES: json.dumps(signed), _PREFIX + "session": self.session.hex()}
        if self.salts:
            facts[_PREFIX + "salts"] = json.dumps({name: salt.hex() for name, salt in self.salts.items()})
        if self.request is not None:
            facts[_PREFIX + "request"] = json.dumps(
                {
                    "nonce": self.request.nonce.hex(),
                    "time": self.request.time,
                    "certificate": base64.b64encode(self.request.certificate).decode(),
                    "signature": base64.b64encode(self.request.signature).decode(),
                }
            )
        return facts


@dataclass(frozen=True)
class SignedSession:
    """The session of a model: `Model` says what each is."""

    attestations: Mapping[str, Attest]
    session: bytes
    request: Request | None
    salts: Mapping[str, bytes]


def session_of(attributes: Mapping[str, str]) -> SignedSession:
    """The session in these attributes, empty where there is none. ValueError, TypeError, KeyError or
    AttributeError for what is none."""
    signed = json.loads(attributes.get(SIGNATURES, "{}"))
    return SignedSession(
        {str(party): _attestation(entry) for party, entry in signed.items()},
        bytes.fromhex(attributes.get(_PREFIX + "session", "")),
        _request(json.loads(attributes.get(_PREFIX + "request", "null"))),
        {
            str(name): bytes.fromhex(salt)
            for name, salt in json.loads(attributes.get(_PREFIX + "salts", "{}")).items()
        },
    )


def _attestation(entry: Mapping[str, Any]) -> Attest:
    return Attest(
        0,
        int(entry["turns"]),
        bytes.fromhex(entry["transcript"]),
        bytes.fromhex(entry["structure"]),
        base64.b64decode(entry["certificate"], validate=True),
        base64.b64decode(entry["signature"], validate=True),
        bytes.fromhex(entry.get("thresholds", "")),
        bytes.fromhex(entry.get("part", "")),
    )


def _request(entry: Mapping[str, Any] | None) -> Request | None:
    if entry is None:
        return None
    return Request(
        bytes.fromhex(entry["nonce"]),
        int(entry["time"]),
        base64.b64decode(entry["certificate"], validate=True),
        base64.b64decode(entry["signature"], validate=True),
    )


def _number(value: object) -> float:
    """The number itself: an integer stays one, so that a model read and written again is the same file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} in the history is no number")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("a number in the history is too large for a float")
    return value
