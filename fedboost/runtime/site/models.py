"""Models at a site: the parts of them that it keeps, and who signed one that it is asked to measure."""

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
from fedboost.runtime.files import write_atomically
from fedboost.runtime.net.keys import read_trust
from fedboost.runtime.signed_model import (
    PartyModel,
    SignedModel,
    SignedSession,
    belonging,
    session_of,
    terms_to_predict,
)
from fedboost.runtime.site.config import PartyConfig, models_folder
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.policy import UNCHECKED, ModelSigners
from fedboost.runtime.site.store import OWNER_ALONE, make_folder
from fedboost.terms import continuation
from fedboost.terms.terms import Terms

# ---- The parts of models that a site keeps, each in a file of its own -----------------------------------
# Promises: a part is on the disk before this site signs it.


NAME_CHARS = 16
"""Characters of a model's id in the name of its file: 64 bits."""
FILE_NAME = re.compile(rf"[0-9a-f]{{{NAME_CHARS}}}\.json")


class PartFolder:
    """The folder of the parts of a site. It is made when the first part is kept."""

    def __init__(self, config: PartyConfig) -> None:
        self.folder, self._party = models_folder(config), config.party

    def file(self, id: str) -> Path:
        """The file of a model."""
        return self.folder / f"{id[:NAME_CHARS]}.json"

    def files(self) -> list[Path]:
        """The files of all parts."""
        try:
            return sorted(file for file in self.folder.iterdir() if FILE_NAME.fullmatch(file.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot read this folder: {error.strerror}") from None

    def keep(self, part: Part) -> Path:
        """Write a part to its file; returns that. A file with another part stays as it is."""
        model = PartyModel.of(part)
        file = self.file(model.id)
        try:
            make_folder(file.parent)
            self._check_free(file, model)
            write_atomically(file, model.to_bytes(), OWNER_ALONE)
        except (ConfigError, OSError) as error:
            raise DurabilityError(str(error)) from None
        return file

    def model_of(self, terms: Terms) -> Booster:
        """The part of the model that these terms predict with. Refused if it is not here."""
        id = terms.vertical.predict_with
        assert id is not None
        file, name = self.file(id), f"model {id[:NAME_CHARS]}"
        try:
            if not file.exists():
                raise Refused(
                    f"party {self._party} has no part of {name}: it did not train it, or its folder of "
                    f"models was moved"
                )
            model = PartyModel.load(file)
        except (ConfigError, OSError) as error:
            raise Refused(f"party {self._party} cannot read its part of {name}", str(error)) from None
        if model.id != id or model.party != self._party:
            raise Refused(f"party {self._party}: its file of model {id[:NAME_CHARS]} is that of another one")
        vertical = terms.vertical
        rows, fewest = vertical.predict_rows or 0, vertical.min_common_rows
        if terms_to_predict(model, rows, fewest) != terms:
            raise Refused(f"the terms are not those that model {id[:NAME_CHARS]} was trained under")
        return model.booster

    def _check_free(self, file: Path, model: PartyModel) -> None:
        """ConfigError if this file has another part: of another party with the same folder, say."""
        if not file.exists():
            return
        there = PartyModel.load(file)
        if (there.id, there.party) != (model.id, model.party):
            raise ConfigError(
                f"{file}: has the part of party {quoted(there.party)!r} of model {there.id[:NAME_CHARS]}, "
                f"which would be lost: give this site a folder of its own by `models`"
            )


# ---- The table that the model in terms was trained on, as a site's memory knows it ----------------------


def training_table(memory: FileMemory, terms: Terms) -> TrainingTable | None:
    """The table of the training of the model in these terms; None where this site took no part in it, or has
    another memory."""
    if terms.trained is None or (session := _session(terms)) is None:
        return None
    known = memory.table_of(terms.trained, b"" if session.request is None else session.request.nonce)
    if known is None:
        return None
    rows, digest = known
    return TrainingTable(rows, lambda hashed: memory.hash_rows(hashed) == digest)


# ---- Who signed the model that some terms measure: the check of its signatures at a site ----------------
# Promises: a name is told only if a certificate of that name, along a chain to a root that the site trusts,
# signed all that the model predicts with, under the terms that it brings along; features and levels mean in
# these terms what they meant in the training. A certificate that has expired since counts: it was in date
# when the model was made. One that is denied does not.


def signers_at(config: PartyConfig, terms: Terms, credentials: Credentials | None = None) -> ModelSigners:
    """Of this site and the parties that its policy names, those that signed the model in terms that measure
    one. credentials: what the site trusts, None to read it from its keys."""
    if not terms.task.measures or (credentials is None and config.keys is None):
        return UNCHECKED
    if credentials is not None:
        roots, denied = credentials.roots, frozenset(credentials.denied)
    else:
        assert config.keys is not None
        try:
            roots, denied = read_trust(config.keys)
        except (ConfigError, OSError) as error:
            return ModelSigners(unknown=f"what this site trusts cannot be read: {error}")
    wanted = {config.party, *config.policy.evaluate_signers}
    return ModelSigners(signers_of(terms, wanted, roots, datetime.now(UTC), denied))


def signers_of(
    terms: Terms, wanted: Collection[str], roots: bytes, now: datetime, denied: Collection[str]
) -> frozenset[str]:
    """Of the parties wanted those that signed the model in these terms. roots: PEM, what is trusted."""
    trained, session = terms.trained, _session(terms)
    if trained is None or terms.xgb_model is None or session is None:
        return frozenset()
    model, here, there = _model(terms.xgb_model, trained), terms.columns, trained.columns
    same = here.features == there.features and here.target_means == there.target_means
    same &= all(here.categorical.get(name) == levels for name, levels in there.categorical.items())
    if model is None or not same:  # each number that the trees read has to mean what it meant in the training
        return frozenset()
    return frozenset(
        name
        for name, attest in session.attestations.items()
        if name in wanted and _holds(model, session, name, attest, roots, now, denied)
    )


def _session(terms: Terms) -> SignedSession | None:
    """The session of the model in some terms; None where there is none."""
    if terms.xgb_model is None:
        return None
    try:
        return session_of(continuation.facts_of(terms.xgb_model))
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _model(text: str, trained: Terms) -> SignedModel | None:
    """The model without signatures, if its parties signed all of its trees: of a program of one's own they
    sign the questions alone, and where columns are held apart each signs what it was told. No signature says
    which output a tree is for, which means are of which column, and what constants there are but the first:
    that has to follow from the terms."""
    if trained.session.program != "boosting" or trained.blocks:
        return None
    own = belonging(continuation.read(text), trained)
    if own is None or own.roots != len(trained.roots):
        return None
    constants = {tuple(tree.value) for tree in own.trees[: own.roots]} if own.begins_with_a_leaf else ()
    ordered = [*own.target_means] == [*trained.columns.target_means]
    if own.num_parallel_tree != trained.trees.num_parallel_tree or not ordered:
        return None
    if trained.columns.base_margin is not None and len(constants) > 1:
        return None
    return SignedModel(own, trained, (), summary=continuation.signed_beside(text))


def _holds(
    model: SignedModel,
    session: SignedSession,
    name: str,
    attest: Attest,
    roots: bytes,
    now: datetime,
    denied: Collection[str],
) -> bool:
    """Tell if the signature of a party holds, at a time at which its certificate was in date."""
    signed = replace(model, attestations={name: attest}, session=session.session, request=session.request)
    try:
        leaf, *_ = x509.load_pem_x509_certificates(attest.certificate)
        return not signed.faults(roots, min(now, leaf.not_valid_after_utc), denied)
    except (FedboostError, ValueError):
        return False
