"""Options for reading a table file: `[read]` in a site's file, and options of the commands.

Promises: one model for both; an option that the form of a file does not know is refused, not ignored.
Refuses: separators of several characters, encodings that do not exist.
"""

import codecs
from typing import Any

from pydantic import Field, field_validator

from fedboost.terms.reading import Frozen, Several

SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""Spellings of a separator that is awkward to type."""
DECIMALS = (".", ",")


class ReadOptions(Frozen):
    """How a file is read: facts that no file says of itself."""

    separator: str | None = Field(
        default=None,
        description="Character between columns of a text: a comma, in a .tsv a tab, unless given.",
    )
    decimal: str = Field(default=".", description="Character in numbers of a text, `.` or `,`.")
    encoding: str = Field(default="utf-8", description="Encoding of a text, such as `latin-1` or `utf-16`.")
    na: Several[str] = Field(
        default=(), description="Words that mean a missing value, beside the [usual ones](tables.md)."
    )
    sheet: str | None = Field(default=None, description="Sheet of a workbook, the first one unless given.")

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = SEPARATORS.get(value, value) if value else value
        if value is not None and (len(value.encode()) != 1 or value in '"\r\n'):
            raise ValueError(f"{value!r} must be one character, such as ';' or tab")
        return value

    @field_validator("decimal")
    @classmethod
    def _point_or_comma(cls, value: str) -> str:
        if value not in DECIMALS:
            raise ValueError(f"{value!r} must be '.' or ','")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            text = codecs.lookup(value)._is_text_encoding  # rot13 and base64 are codecs, too
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ValueError(f"{value!r} is no encoding; such as utf-8, latin-1, cp1252 or utf-16")
        return value

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are not their defaults, by name."""
        return {key: value for key, value in self.model_dump().items() if value != getattr(AS_USUAL, key)}


AS_USUAL = ReadOptions()
