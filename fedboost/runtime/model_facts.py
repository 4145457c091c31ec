"""fedboost's own facts in the attributes of a model file: terms, metrics, signatures.

Refuses: attributes that are not such facts (ConfigError).
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedboost import __version__
from fedboost.errors import ConfigError
from fedboost.people.privacy_report import report_of
from fedboost.protocol.messages import Attest, Request
from fedboost.terms.terms import Terms

_PREFIX = "fedboost."
TERMS = _PREFIX + "terms"
"""The attribute of a model file that has the terms."""


@dataclass(frozen=True)
class Facts:
    """Facts of a trained model beside its trees; `Model` says what each is."""

    terms: Terms
    rounds: tuple[Mapping[str, float], ...]
    attestations: Mapping[str, Attest]
    session: bytes
    rosters: Mapping[int, tuple[str, ...]]
    request: Request | None

    def to_attributes(self) -> dict[str, str]:
        """The attributes that hold these facts."""
        terms = self.terms
        return {
            _PREFIX + "version": __version__,
            TERMS: terms.canonical(),
            _PREFIX + "terms_digest": terms.digest,
            _PREFIX + "protection": terms.hiding.protection,
            _PREFIX + "parties": json.dumps(terms.parties),
            _PREFIX + "history": json.dumps([dict(row) for row in self.rounds]),
            **({_PREFIX + "rosters": json.dumps(dict(self.rosters))} if self.rosters else {}),
            **({_PREFIX + "privacy": json.dumps(report_of(terms))} if terms.noise is not None else {}),
            **self._signatures(),
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
            signed = json.loads(attributes.get(_PREFIX + "attestations", "{}"))
            attestations = {str(party): _attestation(entry) for party, entry in signed.items()}
            session = bytes.fromhex(attributes.get(_PREFIX + "session", ""))
            request = _request(json.loads(attributes.get(_PREFIX + "request", "null")))
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{source}: an XGBoost model without fedboost's facts ({error})") from None
        return cls(terms, rounds, attestations, session, rosters, request)

    def _signatures(self) -> dict[str, str]:
        if not self.attestations:
            return {}
        signed = {
            party: {
                "turns": attest.turns,
                "transcript": attest.transcript.hex(),
                "structure": attest.structure.hex(),
                "certificate": base64.b64encode(attest.certificate).decode(),
                "signature": base64.b64encode(attest.signature).decode(),
            }
            for party, attest in self.attestations.items()
        }
        facts = {_PREFIX + "attestations": json.dumps(signed), _PREFIX + "session": self.session.hex()}
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


def _attestation(entry: Mapping[str, Any]) -> Attest:
    return Attest(
        0,
        int(entry["turns"]),
        bytes.fromhex(entry["transcript"]),
        bytes.fromhex(entry["structure"]),
        base64.b64decode(entry["certificate"], validate=True),
        base64.b64decode(entry["signature"], validate=True),
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
    return value
