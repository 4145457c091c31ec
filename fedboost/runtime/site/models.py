"""Models at a site: storing the site's model parts, and checking the signatures on a model to evaluate."""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedboost.errors import ConfigError, DurabilityError, FedboostError, Refused, quoted
from fedboost.gbdt.booster import Booster
from fedboost.holders.other_tasks import TrainingTable
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Attest
from fedboost.protocol.parts import Part
from fedboost.runtime import signed_model
from fedboost.runtime.files import write_atomically
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.site.config import PartyConfig, models_folder
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.policy import UNCHECKED, ModelSigners
from fedboost.runtime.site.store import make_folder
from fedboost.system import OWNER_ALONE
from fedboost.terms import continuation
from fedboost.terms.tasks import are_of_training
from fedboost.terms.terms import Terms

# ---- The model parts that a site stores, each in its own file -------------------------------------------
# Guarantees: a part is on the disk before this site signs it.


NAME_CHARS = 16
"""Number of hex digits of a model's id in its file name (64 bits)."""
FILE_NAME = re.compile(rf"[0-9a-f]{{{NAME_CHARS}}}\.json")


class PartFolder:
    """The folder in which a site stores its model parts. It is created when the first part is saved."""

    def __init__(self, config: PartyConfig) -> None:
        self.folder, self._party = models_folder(config), config.party

    def file(self, id: str) -> Path:
        return self.folder / f"{id[:NAME_CHARS]}.json"

    def files(self) -> list[Path]:
        """Return the paths of the stored parts. Raises ConfigError if the folder cannot be read."""
        try:
            return sorted(file for file in self.folder.iterdir() if FILE_NAME.fullmatch(file.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                "models-folder-unreadable", f"{self.folder}: cannot read this folder: {error.strerror}"
            ) from None

    def keep(self, part: Part) -> Path:
        """Save a part to its file and return the path. Never replaces the part of another model or party.
        Raises DurabilityError if it cannot be saved."""
        model = signed_model.PartyModel.of(part)
        file = self.file(model.id)
        try:
            make_folder(file.parent)
            self._check_free(file, model)
            write_atomically(file, model.to_bytes(), OWNER_ALONE)
        except (ConfigError, OSError) as error:
            raise DurabilityError(str(error)) from None
        return file

    def model_of(self, terms: Terms) -> Booster:
        """Return this site's part of the model that the session continues or predicts with. Raises Refused if
        the site does not have the part, or if the terms do not match it."""
        id = terms.vertical.predict_with or continuation.id_of(terms.xgb_model)
        file, name = self.file(id), f"model {id[:NAME_CHARS]}"
        try:
            if not file.exists():
                raise Refused(
                    "part-missing",
                    f"party {self._party} has no part of {name}: the party did not take part in the "
                    f"training, or its model folder was moved",
                )
            model = signed_model.PartyModel.load(file)
        except (ConfigError, OSError) as error:
            raise Refused(
                "part-unreadable", f"party {self._party} cannot read its part of {name}", str(error)
            ) from None
        if model.id != id or model.party != self._party:
            raise Refused(
                "part-mismatch",
                f"party {self._party}: its file for model {id[:NAME_CHARS]} contains a different part",
            )
        vertical = terms.vertical
        rows, fewest = vertical.predict_rows or 0, vertical.min_common_rows
        if not (
            are_of_training(terms, model.terms)
            if terms.task.by_analyst
            else signed_model.terms_to_predict(model, rows, fewest) == terms
        ):
            raise Refused(
                "part-other-terms",
                f"the terms do not match those under which model {id[:NAME_CHARS]} was trained",
            )
        return model.booster

    def _check_free(self, file: Path, model: signed_model.PartyModel) -> None:
        """Raise ConfigError if the file contains another part, e.g. of another party with the same folder."""
        if not file.exists():
            return
        there = signed_model.PartyModel.load(file)
        if (there.id, there.party) != (model.id, model.party):
            raise ConfigError(
                "part-file-taken",
                f"{file} contains the part of model {there.id[:NAME_CHARS]} that belongs to party "
                f"{quoted(there.party)!r}, which would be lost; set `models` to a separate folder for this "
                f"site",
            )


# ---- The table that the model in terms was trained on, according to the site's memory -------------------


def training_table(memory: FileMemory, terms: Terms) -> TrainingTable | None:
    """Return facts about the table on which the model in these terms was trained; None if this site did not
    take part in the training, or if its memory does not contain that session."""
    if terms.trained is None or (session := _session(terms)) is None:
        return None
    known = memory.table_of(terms.trained, b"" if session.request is None else session.request.nonce)
    if known is None:
        return None
    rows, digest = known
    return TrainingTable(rows, lambda hashed: memory.hash_rows(hashed) == digest)


# ---- Who signed the model that terms measure: a site's check of its signatures --------------------------
# Guarantees: a party is a signer only if a certificate of that name, along a chain to a root that the site
# trusts, signed everything that affects the model's predictions, under the terms with which it was trained.
# Features and levels have the same meaning in these terms as in training. A certificate that has expired
# since is accepted, because it was valid when the model was trained; a denied certificate is not.


def signers_at(config: PartyConfig, terms: Terms, credentials: Credentials | None = None) -> ModelSigners:
    """Return which parties, among this site and the policy's `evaluate_signers`, signed the model in these
    terms. credentials: certificates that the site trusts; None to read them from the site's key bundle."""
    id = terms.vertical.predict_with
    if terms.task.measures and id is not None:  # a site has no part that it has not signed
        has_part = PartFolder(config).file(id).exists()
        return ModelSigners(frozenset({config.party} if has_part else ()))
    if not terms.task.measures or (credentials is None and config.keys is None):
        return UNCHECKED
    if credentials is not None:
        roots, denied = credentials.roots, frozenset(credentials.denied)
    else:
        assert config.keys is not None
        try:
            roots, denied = read_trust(config.keys)
        except (ConfigError, OSError) as error:
            return ModelSigners(unknown=f"this site's trusted certificates cannot be read: {error}")
    wanted = {config.party, *config.policy.evaluate_signers}
    return ModelSigners(signers_of(terms, wanted, roots, datetime.now(UTC), denied))


def signers_of(
    terms: Terms, wanted: Collection[str], roots: bytes, now: datetime, denied: Collection[str]
) -> frozenset[str]:
    """Return the wanted parties whose signature on the model in these terms is valid.

    Args:
        terms: terms that contain a model to evaluate.
        wanted: names of parties.
        roots: trusted root certificates, PEM.
        now: the current time.
        denied: serial numbers of certificates to reject.
    """
    trained, session = terms.trained, _session(terms)
    if trained is None or terms.xgb_model is None or session is None:
        return frozenset()
    model, here, there = _model(terms.xgb_model, trained), terms.columns, trained.columns
    same = here.features == there.features and here.target_means == there.target_means
    same &= all(here.categorical.get(name) == levels for name, levels in there.categorical.items())
    if model is None or not same:  # every number that the trees read must mean what it meant in the training
        return frozenset()
    return frozenset(
        name
        for name, attest in session.attestations.items()
        if name in wanted and _holds(model, session, name, attest, roots, now, denied)
    )


def _session(terms: Terms) -> signed_model.SignedSession | None:
    """Return the session in which the model in these terms was trained; None if it is not recorded."""
    if terms.xgb_model is None:
        return None
    try:
        return signed_model.session_of(continuation.facts_of(terms.xgb_model))
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _model(text: str, trained: Terms) -> signed_model.SignedModel | None:
    """Return the model without signatures; None if signatures cannot cover everything that affects its
    predictions. Under a custom program or with different columns, parties do not sign all trees. Signatures
    also omit the output of each tree, the column of each target mean, and all constants but the first, so the
    terms must determine these."""
    if trained.session.program != "boosting" or trained.blocks:
        return None
    own = signed_model.belonging(continuation.read(text), trained)
    if own is None or own.roots != len(trained.roots):
        return None
    constants = {tuple(tree.value) for tree in own.trees[: own.roots]} if own.begins_with_a_leaf else ()
    ordered = [*own.target_means] == [*trained.columns.target_means]
    if own.num_parallel_tree != trained.trees.num_parallel_tree or not ordered:
        return None
    if trained.columns.base_margin is not None and len(constants) > 1:
        return None
    return signed_model.SignedModel(own, trained, (), summary=continuation.signed_summary(text))


def _holds(
    model: signed_model.SignedModel,
    session: signed_model.SignedSession,
    name: str,
    attest: Attest,
    roots: bytes,
    now: datetime,
    denied: Collection[str],
) -> bool:
    """Return whether a party's signature is valid now, or was when its expired certificate ended."""
    signed = replace(model, attestations={name: attest}, session=session.session, request=session.request)
    try:
        leaf, *_ = x509.load_pem_x509_certificates(attest.certificate)
        return not signed.faults(roots, min(now, leaf.not_valid_after_utc), denied)
    except (FedboostError, ValueError):
        return False
