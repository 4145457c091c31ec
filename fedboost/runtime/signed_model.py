"""Models with the signatures of the parties that trained them: the file format, verification and model parts.

The file is an XGBoost model with fedboost's metadata as attributes, and `from_bytes` reads the file back
without loss. The session and its signatures are in the same file, or in a separate file next to it, where
`load` finds them.
"""

import base64
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, PlainSerializer, StrictInt, ValidationError

from fedboost import __version__
from fedboost.boosting.queries.base import part_in, view_of
from fedboost.boosting.state import structure as structure_of
from fedboost.errors import Altered, ConfigError, PeerError
from fedboost.gbdt.booster import IMPORTANCES, Booster
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.tree import Tree, inner_nodes
from fedboost.privacy import identity as signatures_identity
from fedboost.privacy.identity import identify
from fedboost.protocol import key_exchange
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Attest, Request
from fedboost.protocol.parts import Part, digest_of, model_id, packed
from fedboost.results.base import Ended
from fedboost.results.model import DrawnTree, GivenRows, ModelReport, ModelSummary, Verification
from fedboost.results.privacy import PrivacyCard
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.net.keys import Bundle
from fedboost.terms import continuation
from fedboost.terms.terms import Terms
from fedboost.views import as_html
from fedboost.views.charts import tree_svg
from fedboost.views.model import report
from fedboost.wire.codec import MAX_REQUEST

# ---- fedboost's facts in the attributes of a model file: terms, metrics, signatures ---------------------


_PREFIX = "fedboost."
TERMS = _PREFIX + "terms"  # attribute with the terms
SUMMARY = _PREFIX + "summary"  # attribute with the program's results besides trees
SIGNATURES = _PREFIX + "attestations"  # attribute with the signatures of the parties

_LARGEST = 1 << 1000
_XGBOOSTS = ("best_iteration",)  # attributes by which XGBoost leaves trees out of a prediction


def facts_in(attributes: Mapping[str, str], source: str) -> dict[str, Any]:
    """Read the fields of a `SignedModel`, except the trees, from a file's attributes. source: the file's name
    in error messages. Raises ConfigError if attributes are missing or malformed. Raises Altered if attributes
    contradict the terms or would change XGBoost's predictions."""
    try:
        terms = Terms.from_canonical(attributes[TERMS])
        history = json.loads(attributes[_PREFIX + "history"])
        rounds = tuple({str(name): _number(value) for name, value in row.items()} for row in history)
        changes = json.loads(attributes.get(_PREFIX + "rosters", "{}"))
        rosters = {int(first): tuple(map(str, roster)) for first, roster in changes.items()}
        signed = session_of(attributes)
        summary = dict(json.loads(attributes.get(SUMMARY, "{}")))
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(
            "model-not-fedboost", f"{source} is an XGBoost model without fedboost's metadata ({reason})"
        ) from None
    repeated = _repeated(terms)
    odd = [name for name, value in repeated.items() if attributes.get(name, value) != value]
    odd += [name for name in _XGBOOSTS if name in attributes]
    if odd:
        raise Altered(
            "model-altered",
            f"{source} was modified: attribute {odd[0]} was changed or added after fedboost wrote the file",
        )
    return {"terms": terms, "rounds": rounds, "rosters": rosters, "summary": summary, **vars(signed)}


def _repeated(terms: Terms) -> dict[str, str]:
    return {
        _PREFIX + "terms_digest": terms.digest,
        _PREFIX + "protection": terms.hiding.protection,
        _PREFIX + "parties": json.dumps(terms.parties),
    }


Hex = Annotated[bytes, BeforeValidator(bytes.fromhex), PlainSerializer(bytes.hex)]
Base64 = Annotated[
    bytes,
    BeforeValidator(lambda text: base64.b64decode(text, validate=True)),
    PlainSerializer(lambda data: base64.b64encode(data).decode()),
]


class _Asked(BaseModel):
    nonce: Hex
    time: StrictInt
    certificate: Base64
    signature: Base64


class _Signed(BaseModel):
    turns: int
    transcript: Hex
    structure: Hex
    certificate: Base64
    signature: Base64
    thresholds: Hex = b""
    part: Hex = b""


@dataclass(frozen=True)
class SignedSession:
    """The session in which a model was trained. Its fields are explained in `SignedModel`."""

    attestations: Mapping[str, Attest]
    session: bytes
    request: Request | None
    salts: Mapping[str, bytes]


def session_of(attributes: Mapping[str, str]) -> SignedSession:
    """Read the session from a file's attributes. Returns an empty session if the attributes contain none.
    Raises ValueError, TypeError, KeyError or AttributeError if the attributes are malformed."""
    signed = json.loads(attributes.get(SIGNATURES, "{}"))
    asked = json.loads(attributes.get(_PREFIX + "request", "null"))
    return SignedSession(
        {str(party): Attest(0, **vars(_Signed.model_validate(entry))) for party, entry in signed.items()},
        bytes.fromhex(attributes.get(_PREFIX + "session", "")),
        None if asked is None else Request(**vars(_Asked.model_validate(asked))),
        {
            str(name): bytes.fromhex(salt)
            for name, salt in json.loads(attributes.get(_PREFIX + "salts", "{}")).items()
        },
    )


def _number(value: object) -> float:
    """Return a value if it is a number, else raise TypeError or ValueError. Integers stay integers, so that
    reading and writing a model does not change its file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} in the history is not a number")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("a number in the history is too large for a float")
    return value


# ---- Signed models --------------------------------------------------------------------------------------


PART_FORMAT = "fedboost.party_model"
PART_BEGINS = f'{{"format":"{PART_FORMAT}"'  # beginning of a file with a party's part of a model


@dataclass(frozen=True)
class SignedModel:
    """A trained model with its metadata and signatures.

    Attributes:
        terms: the terms under which the model was trained.
        rounds: the metrics of each round.
        attestations: maps party -> its signature on the session; empty if parties have no keys.
        session: digest of the session, which the signatures cover.
        rosters: maps round -> parties included in the sums from then on, for each round in which these
            parties changed; empty if all parties were always included.
        request: the analyst's signed request for the session, which the signatures cover.
        salts: in an assembled model, maps party -> salt with which its part was hashed.
        summary: results of training other than the trees, as JSON.
    """

    booster: Booster = field(repr=False)
    terms: Terms = field(repr=False)
    rounds: tuple[Mapping[str, float], ...] = field(repr=False)
    attestations: Mapping[str, Attest] = field(default_factory=dict, repr=False, compare=False)
    session: bytes = field(default=b"", repr=False, compare=False)
    rosters: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    request: Request | None = field(default=None, repr=False, compare=False)
    salts: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        trees, parties = len(self.booster.trees), ", ".join(self.parties)
        return f"{type(self).__name__}({self.booster.objective}, {trees} trees, parties {parties})"

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties on whose rows the model was trained."""
        return self.terms.parties

    @property
    def kept(self) -> int:
        """Number of rounds in the model. It is smaller than the number of trained rounds if early stopping
        removed some."""
        if self.terms.noise is not None:  # a tree joins several rounds
            return len(self.rounds)
        rounds = len(self.booster.trees) // self.booster.roots - self.terms.constant_rounds
        return min(rounds, len(self.rounds))

    @property
    def protection(self) -> str:
        """Name of the protection that was used, e.g. "masked"."""
        return self.terms.hiding.protection

    @property
    def outline(self) -> ModelSummary:
        """Summary of the model for printing, without its trees."""
        return ModelSummary(
            terms=self.terms,
            fingerprint=self.fingerprint,
            trees=len(self.booster.trees),
            trained=len(self.rounds),
            kept=self.kept,
            last_row=self.rounds[self.kept - 1] if self.rounds else {},
            signed_by=tuple(self.attestations),
            rosters=self.rosters,
        )

    @property
    def importances(self) -> dict[str, list[float]]:
        """Maps feature -> its value for each measure in IMPORTANCES. Features with the highest gain come
        first."""
        by_kind = [self.booster.importance(kind) for kind in IMPORTANCES]
        return {name: [values[name] for values in by_kind] for name in by_kind[0]}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model without fedboost's metadata. Equal trees have equal fingerprints, even if
        other parties trained them."""
        return self.booster.fingerprint

    def verify(self, roots: bytes, now: datetime, denied: Collection[str] = ()) -> tuple[str, ...]:
        """Verify the signatures and return the names of the parties that signed this model.

        A valid signature shows that the party took part in the session under these terms, including their
        protection, and that it received exactly these trees. A custom program may derive any trees from the
        sums, so if the terms use such a program, signatures cover only the queries.

        Args:
            roots: root certificates of the consortium, PEM.
            now: time at which certificates must be valid.
            denied: serial numbers of revoked certificates.

        Raises:
            PeerError: a signature is invalid.
        """
        faults = self.faults(roots, now, denied)
        if faults:
            raise PeerError("model-signature-wrong", next(iter(faults.values())))
        return tuple(party for party in self.parties if party in self.attestations)

    def faults(self, roots: bytes, now: datetime, denied: Collection[str] = ()) -> dict[str, str]:
        """Return a dict: party -> what is wrong with its signature, for each party whose signature is
        invalid. Arguments are as for `verify`."""
        viewers = {party: self.terms.blocks.viewer(party) for party in self.attestations}
        structures: dict[str, bytes | None] = dict.fromkeys(viewers.values())
        if self.terms.session.program == "boosting":
            structures = {viewer: self._structure(viewer) for viewer in structures}
        faults = {
            party: self._fault(party, structures[viewer], roots, now, denied)
            for party, viewer in viewers.items()
        }
        return {party: fault for party, fault in faults.items() if fault}

    def _fault(
        self, party: str, structure: bytes | None, roots: bytes, now: datetime, denied: Collection[str]
    ) -> str:
        attest = self.attestations[party]
        alike = self.terms.keeps_parts or not self.terms.blocks  # otherwise each party received its own view
        others = self.attestations.values() if alike else ()
        if len({other.transcript for other in others}) > 1:
            return "the parties signed different transcripts of queries"
        try:
            signed_by = identify(attest.certificate, roots, now, denied)
        except PeerError as error:
            return f"the signature of party {party} is invalid: {error}"
        if (signed_by.name, signed_by.role) != (party, key_exchange.PARTY) or party not in self.parties:
            return f"the signature of party {party} was made by {signed_by.role} {signed_by.name}"
        if structure not in (None, attest.structure):
            return f"party {party} signed trees that differ from the model's trees"
        hides = self.terms.hides_columns and not self.terms.keeps_parts
        trees = self.booster.trees[self.booster.roots * self.terms.constant_rounds :]
        if hides and attest.thresholds != packed(self.terms, party, trees):
            return f"party {party} signed thresholds that differ from the model's thresholds"
        if self.terms.keeps_parts and not self._has_part(party, attest.part):
            return (
                f"party {party} signed a part that differs from the model's part, or the file lacks its salt"
            )
        nonce = b"" if self.request is None else self.request.nonce
        statement = key_exchange.attestation(self.terms, nonce, self.session, party, attest)
        try:
            signatures_identity.verify(signed_by, statement, attest.signature)
        except PeerError as error:
            return str(error)
        return ""

    def _has_part(self, party: str, digest: bytes) -> bool:
        """Return whether the model contains the part that a party signed. digest: the signed hash of the part
        and its salt. Without a salt, the party's part must be empty."""
        part, salt = part_in(self.booster, self.terms, party), self.salts.get(party)
        if salt is not None:
            return digest_of(part, salt) == digest
        has = (inner_nodes(part.trees)["feature"] < len(part.features)).any()
        return not has and not self.terms.blocks.has_labels(party)

    def _structure(self, party: str) -> bytes:
        """Return the digest of the initial constant and the trees, as a party received them; b"" if the task
        does not train a model."""
        if not self.terms.task.trains:
            return b""
        trees = self.booster.trees[self.booster.roots * self.terms.constant_rounds :]
        edges = continuation.edges_in(self.terms.evaluation, self.summary)
        based = self.terms.columns.base_margin is not None
        constant = self.booster.trees[0].value[0] if based else self.booster.constant
        constant = constant if self.terms.earlier is None else 0.0
        view = view_of(self.terms, party)
        if view is not None:
            view = view.public if self.terms.keeps_parts else view
            trees = tuple(view.tree(tree) for tree in trees)
            constant = constant if view.has_labels else 0.0
        return structure_of(constant, trees, self.booster.target_means.values(), edges)

    def to_bytes(self, session: bool = True) -> bytes:
        """Return the content of the model file. session: include the session and its signatures; without
        them, the same parties, rows and terms yield the same bytes."""
        return self.booster.to_xgboost(self.attributes(session)).encode()

    def attributes(self, session: bool = True) -> dict[str, str]:
        """Return fedboost's metadata as attributes of the model file. session: as for `to_bytes`."""
        card = None if self.terms.noise is None else json.dumps(PrivacyCard.of(self.terms).summary)
        return {
            _PREFIX + "version": __version__,
            TERMS: self.terms.canonical(),
            **_repeated(self.terms),
            _PREFIX + "history": json.dumps([dict(row) for row in self.rounds]),
            **({_PREFIX + "rosters": json.dumps(dict(self.rosters))} if self.rosters else {}),
            **({SUMMARY: json.dumps(self.summary)} if self.summary else {}),
            **({} if card is None else {_PREFIX + "privacy": card}),
            **(self._session_attributes() if session else {}),
        }

    def _session_attributes(self) -> dict[str, str]:
        """Return the attributes in which sessions under the same terms differ; {} without signatures."""
        if not self.attestations:
            return {}
        signed = {
            party: _Signed.model_construct(**vars(attest)).model_dump(exclude_defaults=True)
            for party, attest in self.attestations.items()
        }
        facts = {SIGNATURES: json.dumps(signed), _PREFIX + "session": self.session.hex()}
        if self.salts:
            facts[_PREFIX + "salts"] = json.dumps({name: salt.hex() for name, salt in self.salts.items()})
        if self.request is not None:
            asked = _Asked.model_construct(**vars(self.request)).model_dump()
            facts[_PREFIX + "request"] = json.dumps(asked)
        return facts

    def save(self, path: Path | str, reproducible: bool = False) -> None:
        """Write the model to a file in XGBoost's JSON format. reproducible: write the session and its
        signatures, which differ every time a model is trained, to a separate file next to the model
        (`session_file`). Raises ConfigError if a file cannot be written."""
        path = Path(path)
        beside, session = session_file(path), self._session_attributes()
        if reproducible and session:
            write_atomically(beside, json.dumps(session, indent=1).encode())
        elif beside.exists() and read_session(beside) is not None:
            beside.unlink()  # it belongs to the model that is replaced
        write_atomically(path, self.to_bytes(session=not reproducible))

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "model") -> Self:
        """Create a model from the content of a file. source: the file's name in error messages. Raises
        ConfigError if the content is not a fedboost model."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ConfigError(
                "model-not-fedboost", f"{source} is not a model, because it is not text"
            ) from None
        return cls(**contents(text, source))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a model file, and the session file next to it if there is one. Raises ConfigError if the file
        cannot be read or is not a fedboost model."""
        with file_errors(path, "cannot read the model"):
            data = Path(path).read_bytes()
        model = cls.from_bytes(data, str(path))
        signed = None if model.attestations else read_session(session_file(Path(path)))
        return model if signed is None else replace(model, **vars(signed))


def contents(text: str, source: str, holders: int = 0) -> dict[str, Any]:
    """Parse the text of a model file into the fields of a `SignedModel`. source: the file's name in error
    messages; holders: as for `Booster.from_xgboost`. Raises ConfigError if the text is not a complete
    fedboost model, and Altered if it was modified."""
    if not holders and text.startswith(PART_BEGINS):
        raise ConfigError(
            "model-is-part",
            f"{source} is only a part of a model, which cannot predict; run fedboost assemble on all parts, "
            f"or predict together with their owners (fedboost predict --party)",
        )
    booster, attributes = Booster.from_xgboost(text, source, holders)
    facts = facts_in(attributes, source)
    own = belonging(booster, facts["terms"])
    if own is None:
        raise Altered("model-altered", f"{source} was modified: its trees do not match its terms")
    return {**facts, "booster": own}


def belonging(booster: Booster, terms: Terms) -> Booster | None:
    """Return a file's trees with the terms' loss function, or None if these terms cannot yield them."""
    if terms.objective.loss.xgboost_equivalent == booster.loss:  # the file only names objectives of XGBoost
        booster = replace(booster, loss=terms.objective.loss)
    columns = terms.columns.features, tuple(terms.columns.categorical), terms.objective.name
    fits = columns == (booster.features, booster.categorical, booster.objective)
    fits = fits and booster.buckets == terms.columns.target_means
    based = terms.columns.base_margin is not None and terms.session.program == "boosting"
    fits = fits and (not based or booster.begins_with_a_leaf) and _continues(booster, terms)
    return booster if fits else None


def session_file(model: Path) -> Path:
    """Return the path of a model's session file, e.g. model.session.json for model.json."""
    return model.with_name(f"{model.stem}.session.json")


def read_session(path: Path) -> SignedSession | None:
    """Read a session file written by `SignedModel.save`. Returns None if the file does not exist. Raises
    ConfigError if it cannot be read or is not a session file."""
    try:
        attributes = json.loads(path.read_bytes())
        return session_of(attributes) if SIGNATURES in attributes else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            "model-unreadable", f"{path}: cannot read the session of the model: {error.strerror}"
        ) from None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            "model-session-invalid",
            f"{path} has the name of a model's session file, but is not one; move the file aside",
        ) from None


def _continues(booster: Booster, terms: Terms) -> bool:
    """Return whether a model starts with the trees of the model in its terms, if these have one."""
    first = terms.earlier
    if first is None:
        return True
    begun = replace(booster, trees=booster.trees[: len(first.trees)])
    if terms.keeps_parts:  # compare what all parts show
        return part_in(begun, terms).trees == part_in(first, terms).trees
    same = "trees", "base_score", "num_parallel_tree"
    return all(getattr(begun, name) == getattr(first, name) for name in same)


def signed_model_of(session: AggregatorSession) -> SignedModel:
    """Return the model of a finished session. Raises SessionFailed if it has none."""
    if session.error is not None:
        raise session.error
    assert session.booster is not None
    return SignedModel(session.booster, session.terms, **facts_of(session))


def facts_of(session: AggregatorSession) -> dict[str, Any]:
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
    return {
        "rounds": rounds,
        "attestations": signed,
        "session": digest,
        "rosters": rosters,
        "request": request,
        "summary": {} if session.run.outcome is None else session.run.outcome.summary,
    }


# ---- The report of a model from its file, without rows --------------------------------------------------


MAX_TREES = 3
MAX_LEAVES = 64  # maximum number of leaves of a tree drawn in a page


def written(
    model: SignedModel,
    rows: GivenRows | None = None,
    verification: Verification | None = None,
    session: Ended | None = None,
) -> str:
    """Return a report about a model as an HTML page. rows: results on a table; verification: result of
    verifying the signatures; session: the session in which the model was trained, if known."""
    trees = [_tree(model, number) for number in range(min(MAX_TREES, len(model.booster.trees)))]
    has_classes = model.terms.objective.loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    classes = tuple(map(str, classes_of(model.terms))) if has_classes else ()
    shown = ModelReport(
        model.outline,
        model.rounds,
        model.importances,
        trees,
        classes,
        "" if model.request is None else f"{datetime.fromtimestamp(model.request.time, UTC):%Y-%m-%d}",
        continuation.training_rows(model.summary),
        verification,
        rows,
        session,
    )
    return as_html.report(report(shown))


def _tree(model: SignedModel, number: int) -> DrawnTree:
    tree, title, picture = model.booster.trees[number], tree_title(model, number), ""
    if len(tree.leaves) <= MAX_LEAVES:
        categories = model.terms.columns.categorical
        picture = tree_svg(tree, model.booster.features, categories, title, in_page=True)
    return DrawnTree(title, len(tree.leaves), picture)


def tree_title(model: SignedModel, number: int) -> str:
    """Return the title of a tree: its number, objective, round, class, and index among parallel trees."""
    booster = model.booster
    in_round, parallel = number % booster.roots, booster.num_parallel_tree
    title = f"Tree {number} of {len(booster.trees)}, {booster.objective}: round {number // booster.roots}"
    title += f", class {classes_of(model.terms)[in_round // parallel]}" if booster.loss.outputs > 1 else ""
    return title + (f", tree {in_round % parallel}" if parallel > 1 else "")


def classes_of(terms: Terms) -> tuple[str, ...] | tuple[int, ...]:
    """Return the class labels: `columns.classes` or 0, 1, ... Raises ConfigError if there are no classes."""
    if terms.objective.loss.xgboost_equivalent.label_kind is not LabelKind.CLASS:
        raise ConfigError("model-no-classes", f"objective {terms.objective.name} has no classes; use predict")
    return terms.columns.classes or tuple(range(terms.objective.num_class or 2))


# ---- Terms that an analyst signed, in a file ------------------------------------------------------------
# The file is JSON: `terms` as text, and `request` with the analyst's nonce, time, certificate and signature
# (base64), unless analysts have no keys. Those who submit the file cannot change the terms.


class _AskedInFile(_Asked):
    nonce: Base64


def sign_terms(terms: Terms, bundle: Bundle | None) -> bytes:
    """Return the content of a file with signed terms, valid for one session. Without a bundle, i.e. if
    analysts have no keys, the terms are not signed."""
    values: dict[str, Any] = {"terms": terms.canonical()}
    if bundle is not None:
        request = request_of(terms, bundle)
        values["request"] = _AskedInFile.model_construct(**vars(request)).model_dump()
    return json.dumps(values, indent=1).encode() + b"\n"


def request_of(terms: Terms, bundle: Bundle, wish: bytes = key_exchange.SESSION) -> Request:
    """Sign a request that concerns these terms, with the current time. wish: what is requested, a session
    (default) or a preflight check."""
    nonce = os.urandom(key_exchange.NONCE_BYTES)
    return key_exchange.request(bundle.signer, terms, nonce, int(time.time()), wish)


def from_json(data: bytes) -> tuple[str, Request | None]:
    """Parse a file with signed terms. Returns the text of the terms and the analyst's request (None if the
    terms are not signed). Neither is verified. Raises ConfigError if the content is not signed terms."""
    try:
        values = json.loads(data)
        text, given = values["terms"], values.get("request")
        if not isinstance(text, str) or not {*values} <= {"terms", "request"}:
            raise ValueError
        if given is None:
            return text, None
        request = Request(**vars(_AskedInFile.model_validate(given)))
        if sum(map(len, (request.nonce, request.certificate, request.signature))) > MAX_REQUEST:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            "terms-not-signed", "these are not signed terms; sign them with `fedboost sign`"
        ) from None
    return text, request


def verified(
    model: SignedModel, source: str, roots: bytes, now: datetime, denied: Collection[str] = ()
) -> Verification:
    """Verify a model's signatures and the request of its analyst.

    Args:
        model: the model.
        source: name of the model file in the result.
        roots: root certificates of the consortium, PEM.
        now: time at which certificates must be valid.
        denied: serial numbers of revoked certificates.
    """
    faults = model.faults(roots, now, denied)
    analyst, asked, fault = "", "", ""
    if model.request is None:
        fault = "the model does not contain an analyst's request"
    elif model.attestations:
        try:
            trust = Trust(roots, frozenset(denied), lambda: now)
            analyst = key_exchange.check_request(trust, model.terms, model.request)
            asked = f"{datetime.fromtimestamp(model.request.time, UTC):%Y-%m-%d %H:%M} UTC"
        except (PeerError, OverflowError, ValueError, OSError) as error:
            fault = f"the analyst's request is invalid: {error}"
    return Verification(
        file=source,
        terms=model.terms,
        fingerprint=model.fingerprint,
        trees=len(model.booster.trees),
        faults={party: faults.get(party, "") for party in model.attestations},
        needed=model.terms.signers,
        analyst=analyst,
        asked=asked,
        request_fault=fault,
    )


# ---- Parts of a model, and their assembly ---------------------------------------------------------------
# The file is JSON: `format`, `party` ('' for the analyst's, which is only the structure), `session`, `salt`,
# `gains`, and in `model` the trees as the party received them, in XGBoost's form. A split by another party's
# column has only that party's index, counted after all features.


PART_VERSION = 1


@dataclass(frozen=True, repr=False)
class PartyModel(SignedModel):
    """A party's part of a model, or the analyst's part.

    Attributes:
        party: name of the party, or '' for the analyst's part. The analyst's part has the structure of the
            trees, the party of each split, metrics and signatures.
        name: name of the session.
        salt: salt of the hash of this part, which the party signed.
        gains: in the analyst's part, maps party -> total gain of its splits.
    """

    party: str = ""
    name: str = ""
    salt: bytes = field(default=b"", repr=False)
    gains: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        of = f"of {self.party}" if self.party else "structure"
        return f"{type(self).__name__}({of}, {len(self.booster.trees)} trees, id {self.id[:12]})"

    @cached_property
    def id(self) -> str:
        """Identifier of the complete model, in hex. All parts of a model have the same identifier."""
        holder = self.terms.vertical.label_holder
        assert holder is not None
        return model_id(self.name, self.terms, self._structure(holder))

    @property
    def outline(self) -> ModelSummary:
        """Summary of the model for printing, with each party's share of the gain."""
        return super().outline.model_copy(update={"shares": self.importance})

    @property
    def importance(self) -> dict[str, float]:
        """Maps party -> its share of the total gain, highest first. Empty unless this is the analyst's
        part."""
        total = sum(self.gains.values())
        return {name: gain / total for name, gain in sorted(self.gains.items(), key=lambda g: -g[1]) if total}

    def to_bytes(self, session: bool = True) -> bytes:
        """Return the content of the file. session: as for `SignedModel.to_bytes`."""
        content = {
            "format": PART_FORMAT,
            "version": PART_VERSION,
            "party": self.party,
            "session": self.name,
            **({"salt": self.salt.hex()} if self.salt else {}),
            **({"gains": dict(self.gains)} if self.gains else {}),
            "model": json.loads(super().to_bytes(session)),
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def of(cls, part: Part) -> Self:
        """Create a `PartyModel`, which can be saved to a file, from a part that a party keeps."""
        return cls(part.booster, part.terms, (), party=part.party, name=part.session, salt=part.salt)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "model") -> Self:
        """Create a model part from the content of a file. source: the file's name in error messages. Raises
        ConfigError if the content is not a model part, and Altered if it was modified."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("format") != PART_FORMAT:
            raise ConfigError("model-not-part", f"{source} is not a model part written by `fedboost party`")
        try:
            if content["version"] != PART_VERSION:
                raise ConfigError(
                    "model-part-newer", f"{source} is a model part from a newer fedboost; update fedboost"
                )
            own: dict[str, Any] = {"party": str(content["party"]), "name": str(content["session"])}
            own["salt"] = bytes.fromhex(content.get("salt", ""))
            own["gains"] = {str(name): float(gain) for name, gain in content.get("gains", {}).items()}
            terms = Terms.from_canonical(content["model"]["learner"]["attributes"][TERMS])
            text = json.dumps(content["model"], ensure_ascii=False)
            _ = (own["name"] + text).encode()  # ValueError for lone surrogates
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                "model-not-part", f"{source} is an incomplete or damaged model part ({error})"
            ) from None
        part = cls(**contents(text, source, len(terms.parties)), **own)
        if not terms.keeps_parts or part.party not in ("", *terms.parties) or not part._is_own:
            raise Altered("model-altered", f"{source} was modified: its trees do not match its terms")
        return part

    def _has_part(self, party: str, digest: bytes) -> bool:
        """Return True: one part cannot show what other parties signed. `assembled` checks all parts."""
        return True

    @property
    def _is_own(self) -> bool:
        """True if this part contains complete splits only for the party's own columns."""
        view = view_of(self.terms, self.party or self.terms.parties[0])
        assert view is not None
        view = view if self.party else view.public
        others = [view.features + place for place in range(view.parties) if place != view.place]
        seen = [*view.own_features, *others]
        return bool(np.isin(inner_nodes(self.booster.trees)["feature"], seen).all())


def trained_model_of(session: AggregatorSession) -> SignedModel:
    """Return the analyst's model of a finished session; if parties keep parts, it has only the structure of
    the trees. Raises SessionFailed if there is no model."""
    model = signed_model_of(session)
    terms = session.terms
    if not terms.keeps_parts:
        return model
    booster = part_in(model.booster, terms)
    holder = inner_nodes(booster.trees)["feature"] - len(booster.features)
    by_place = np.bincount(holder, inner_nodes(model.booster.trees)["gain"], len(terms.parties))
    gains = dict(zip(terms.parties, by_place.tolist(), strict=True))
    return PartyModel(booster, terms, **facts_of(session), name=session.name, gains=gains)


def assembled(parts: Iterable[PartyModel]) -> SignedModel:
    """Assemble a model from the parts of the label holder and of all parties with splits. If the analyst's
    part is included, the model has metrics and signatures, and each part must be the one that was signed.
    Raises ConfigError if parts are missing, altered or from different sessions."""
    by_party = _by_party(parts)
    first = next(iter(by_party.values()))
    holder, terms = first.terms.vertical.label_holder, first.terms
    assert holder is not None
    if holder not in by_party:
        raise ConfigError(
            "model-parts-missing",
            f"the part of label holder {holder} is missing; it is needed for the leaf values",
        )
    own, signed = by_party[holder], by_party.get("")
    if signed is not None:
        for name, part in by_party.items():
            attest = signed.attestations.get(name)
            if name and attest is not None and attest.part != digest_of(part.booster, part.salt):
                raise ConfigError(
                    "model-part-altered", f"the part of {name} differs from the one that {name} signed"
                )
    trees = tuple(_whole(number, tree, by_party, terms) for number, tree in enumerate(own.booster.trees))
    facts = {name: getattr(signed or own, name) for name in SignedModel.__dataclass_fields__}
    facts["salts"] = {name: part.salt for name, part in by_party.items() if name and signed is not None}
    return SignedModel(**{**facts, "booster": replace(own.booster, trees=trees)})


def _by_party(parts: Iterable[PartyModel]) -> dict[str, PartyModel]:
    by_party: dict[str, PartyModel] = {}
    for part in parts:
        whose = f"the part of {part.party}" if part.party else "the analyst's part"
        if part.party in by_party:
            raise ConfigError("model-part-twice", f"{whose} was passed twice; remove one")
        by_party[part.party] = part
        first = next(iter(by_party.values()))
        if part.id != first.id:
            other = f"that of {first.party}" if first.party else "the analyst's"
            raise ConfigError("model-parts-differ", f"{whose} comes from a different session than {other}")
    if not by_party:
        raise ConfigError("model-parts-missing", "there are no model parts; pass the part of each party")
    return by_party


def _whole(number: int, tree: Tree, by_party: Mapping[str, PartyModel], terms: Terms) -> Tree:
    features = len(terms.columns.features)
    nodes, categories = tree.nodes.copy(), tree.categories.copy()
    for node in np.flatnonzero(tree.inner & (tree.feature >= features)).tolist():
        party = terms.parties[tree.feature[node] - features]
        if party not in by_party:
            raise ConfigError(
                "model-parts-missing",
                f"the part of {party} is missing; it is needed for split {node} of tree {number}",
            )
        theirs = by_party[party].booster.trees[number]
        for name in ("feature", "threshold", "missing_left"):
            nodes[name][node] = theirs.nodes[name][node]
        categories[node] = theirs.categories[node]
    return Tree(nodes, categories)


def terms_to_predict(model: PartyModel, rows: int, min_common_rows: int | None = None) -> Terms:
    """Return the terms of a session that predicts with a model: the terms under which the model was trained,
    with `min_common_rows` replaced if it is passed. If a party disconnects, such a session ends, and the
    label holder must start another one. rows: number of rows to predict or, if ids may be repeated, number of
    ids."""
    fewest = model.terms.vertical.min_common_rows if min_common_rows is None else min_common_rows
    return model.terms.changed(
        predict_with=model.id, predict_rows=rows, min_common_rows=fewest, on_loss="stop"
    )
