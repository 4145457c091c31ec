"""Settings that are one flat table in a file and groups in code.

Promises: input and the output of `model_dump` are flat, in the order of ORDER; a fault is at the key of
the flat table.
Refuses: the names of groups as keys.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache, cached_property
from itertools import islice
from typing import Any, ClassVar, Self

from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator
from pydantic.fields import FieldInfo

from fedboost.errors import ConfigError, quoted
from fedboost.terms.reading import Frozen, Location, first_fault


class Group(Frozen):
    """Base of a group: its fields, by their aliases if they have any, are keys of the flat table."""

    @classmethod
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    def replaced(self, **values: object) -> Self:
        """The same group with other values, which are not checked again. Unset values stay unset."""
        return self._made(self.model_fields_set, values)

    def altered(self, settings: Mapping[str, object], without: Collection[str] = ()) -> Self:
        """The same group with these settings, by their keys, and with the defaults of others. Each is checked
        by itself, and nothing else is read again. ValidationError."""
        read = self.model_validate(settings)
        unset = {name for name, field in type(self).model_fields.items() if (field.alias or name) in without}
        values = {name: getattr(read, name) for name in read.model_fields_set | unset}
        return self._made((self.model_fields_set - unset) | read.model_fields_set, values)

    def _made(self, fields_set: set[str], values: Mapping[str, object]) -> Self:
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_construct(fields_set, **{**own, **values})


class Flat(Frozen):
    """Base of settings in groups. A field that is no group is a key of the flat table itself."""

    ORDER: ClassVar[tuple[str, ...]] = ()
    """The keys of the flat table, in the order of its digest."""
    OMITTED: ClassVar[tuple[str, ...]] = ()
    """Keys that are written only where they are used: what has none is written as before there were any."""

    @classmethod
    @cache
    def file_keys(cls) -> Mapping[str, FieldInfo]:
        fields = {key: field for key, _, _, field in cls._places()}
        return {key: fields[key] for key in cls.ORDER}

    @classmethod
    def location_in_file(cls, location: Location) -> Location:
        first = str(location[0]) if location else ""
        return location[1:] if _group_of(cls.model_fields.get(first)) else location

    def canonical(self) -> str:
        """The settings as JSON, keys in the order of ORDER: the text that is hashed and sent.

        Tables keep the order of their declaration, as that of categorical columns is one of features.
        """
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return digest_of(self._canonical)

    @classmethod
    def groups(cls) -> Mapping[str, type[Group]]:
        """The groups by name, in the order of their fields."""
        groups = {name: _group_of(field) for name, field in cls.model_fields.items()}
        return {name: group for name, group in groups.items() if group is not None}

    def check(self) -> None:
        """Raise ValueError unless the groups go together."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        self.check()
        return self

    def altered(self, settings: Mapping[str, object], without: Collection[str] = ()) -> Self:
        """The same with these settings of groups, by their keys, and with the defaults of others. What else
        there is is shared and not read again. ConfigError."""
        homes, fields = self._homes(), {name: getattr(self, name) for name in type(self).model_fields}
        for home in dict.fromkeys(homes[key][0] for key in (*settings, *without)):
            own = {key: value for key, value in settings.items() if homes[key][0] == home}
            try:
                fields[home] = fields[home].altered(own, without)
            except ValidationError as error:
                raise first_fault(type(fields[home]), error, "terms") from None
        altered = type(self).model_construct(self.model_fields_set, **fields)
        try:
            altered.check()
        except ValueError as error:
            raise ConfigError(f"terms: {quoted(str(error))}") from None
        return altered

    @property
    def flat(self) -> dict[str, Any]:
        """The value of each key of the flat table."""
        return {
            key: getattr(getattr(self, home), name) if name else getattr(self, home)
            for key, (home, name) in self._homes().items()
        }

    @classmethod
    @cache
    def _homes(cls) -> Mapping[str, tuple[str, str]]:
        """Key -> its field here, and its field in that group, '' if it is no group."""
        homes = {key: (home, name) for key, home, name, _ in cls._places()}
        return {key: homes[key] for key in cls.ORDER}

    @classmethod
    def _places(cls) -> Iterator[tuple[str, str, str, FieldInfo]]:
        """Each key, its field here, its field in that group, and the definition of that."""
        for home, own in cls.model_fields.items():
            group = _group_of(own)
            if group is None:
                yield home, home, "", own
            else:
                for name, field in group.model_fields.items():
                    yield field.alias or name, home, name, field

    @model_validator(mode="before")
    @classmethod
    def _into_groups(cls, values: Any) -> Any:
        """Flat values by group. Of unknown keys the first goes along, for a group to refuse it: each is a
        fault of its own, and one is reported."""
        if not isinstance(values, dict):
            return values
        homes = cls._homes()
        out: dict[str, Any] = {name: {} for name in cls.groups()}
        strangers = (key for key in values if key not in homes)
        for key in [*(key for key in values if key in homes), *islice(strangers, 1)]:
            home, name = homes.get(key, (next(iter(out)), key))
            if name:
                out[home][key] = values[key]
            else:
                out[home] = values[key]
        return out

    @model_serializer(mode="wrap")
    def _out_of_groups(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        nested = dump(self)
        out, fields = {}, self.file_keys()
        for key, (home, name) in self._homes().items():
            table, own = (nested.get(home, {}), name) if name else (nested, home)
            if own in table:
                says_nothing = not table[own] or table[own] == fields[key].default
                if not (key in self.OMITTED and says_nothing):
                    out[key] = table[own]
        return out


def digest_of(text: str) -> str:
    """The digest of settings of which this is the canonical text; of no settings for any other text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _group_of(field: FieldInfo | None) -> type[Group] | None:
    annotation = None if field is None else field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Group) else None
