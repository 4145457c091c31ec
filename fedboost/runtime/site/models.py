"""The parts of models that a site keeps, each in a file of its own.

Promises: a part is on the disk before this site signs it.
Refuses: a folder that cannot be written or read (DurabilityError, ConfigError), and models of which nothing
is here (Refused).
"""

import re
from pathlib import Path

from fedboost.errors import ConfigError, DurabilityError, Refused, quoted
from fedboost.gbdt.booster import Booster
from fedboost.protocol.parts import Part
from fedboost.runtime.files import write_atomically
from fedboost.runtime.party_model import PartyModel, terms_to_predict
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory_file import OWNER_ALONE, make_folder
from fedboost.terms.terms import Terms

NAME_CHARS = 16
"""Characters of a model's id in the name of its file: 64 bits."""
FILE_NAME = re.compile(rf"[0-9a-f]{{{NAME_CHARS}}}\.json")


class PartFolder:
    """The folder of the parts of a site. It is made when the first part is kept."""

    def __init__(self, config: PartyConfig) -> None:
        self._folder, self._party = config.models, config.party

    def file(self, id: str) -> Path:
        """The file of a model."""
        assert self._folder is not None
        return self._folder / f"{id[:NAME_CHARS]}.json"

    def files(self) -> list[Path]:
        """The files of all parts."""
        assert self._folder is not None
        try:
            return sorted(file for file in self._folder.iterdir() if FILE_NAME.fullmatch(file.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot read this folder: {error.strerror}") from None

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
