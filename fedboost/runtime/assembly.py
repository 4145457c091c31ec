"""Models and parts of models by their files.

Promises: what a file has is told by its content.
Refuses: files that are neither (ConfigError).
"""

from collections.abc import Iterable
from pathlib import Path

from fedboost.errors import ConfigError
from fedboost.runtime.model_file import Model
from fedboost.runtime.party_model import PartyModel, assembled
from fedboost.runtime.signed_model import PART_BEGINS


def read_trained(data: bytes, source: str) -> Model | PartyModel:
    """What a training gave: a model, or its structure, or a party's part of it."""
    kind: type[Model | PartyModel] = PartyModel if data.startswith(PART_BEGINS.encode()) else Model
    return kind.from_bytes(data, source)


def load_trained(path: Path) -> Model | PartyModel:
    """The model, or the part of one, in a file, with the session's file beside it if there is one."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(PART_BEGINS))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the model: {error.strerror}") from None
    return PartyModel.load(path) if begins == PART_BEGINS.encode() else Model.load(path)


def assemble(parts: Iterable[PartyModel | Path | str]) -> Model:
    """The model of these parts, or of those in these files: those of the label holder and of all parties
    that have splits in it. With the analyst's it has metrics and signatures, too. ConfigError for parts that
    do not belong together."""
    read = [part if isinstance(part, PartyModel) else PartyModel.load(part) for part in parts]
    return Model(**vars(assembled(read)))
