"""Exceptions that fedboost raises.

An error message is one sentence that says what happened, where, to whom, and what to do next. The command
line prints only that sentence and exits with code 2. Any other exception that reaches the user is a bug in
fedboost.
"""

import re

MAX_QUOTE_LENGTH = 500
"""Maximum number of characters quoted from untrusted text, e.g. a peer's message, in an error message."""
_UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    r"\U000e0100-\U000e01ef]"
)
"""Characters that are invisible although `str.isprintable` accepts them."""


def printable(text: str) -> str:
    """Return the text as one line in which invisible characters are escaped. Names that differ only in such
    characters thus look different."""
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    seen = (c.isprintable() and not _UNSEEN.match(c) for c in text)
    return "".join(c if s else c.encode("unicode_escape").decode() for c, s in zip(text, seen, strict=True))


def quoted(text: str, longest: int = MAX_QUOTE_LENGTH) -> str:
    """Return untrusted text as one printable line, cut off after `longest` characters."""
    return printable(text if len(text) <= longest else text[:longest] + "…")


class FedboostError(Exception):
    """Base class of the errors that fedboost raises deliberately.

    Args:
        code: stable identifier of the cause, e.g. `table-column-missing`; docs/errors.md lists all codes.
        public: the message, which may be sent to other parties.
        detail: values and row numbers of a site's table. `str(error)` includes them, but they are never sent.
    """

    def __init__(self, code: str, public: str, detail: str = "") -> None:
        super().__init__(f"{public}: {detail}" if detail else public)
        self.code = code
        self.public = public
        self.detail = detail


class ConfigError(FedboostError):
    """The user's input (terms, configuration, data, model file or command line) cannot be used."""


class Altered(ConfigError):
    """A model file was modified after fedboost wrote it."""


class LocalProtocolError(FedboostError):
    """This process violated the protocol, because of a bug in fedboost or in a custom program."""


class PeerError(FedboostError):
    """The peer violated the protocol, so the connection to it is closed."""


class Refused(FedboostError):
    """The request is not allowed by the terms, or by a site's policy or data."""


class SchemaMismatch(Refused):
    """A site's rows do not fit the terms. `code` and `public` are the same for every cause, because the cause
    itself could reveal individual rows."""


class RosterTooSmall(FedboostError):
    """Too many parties disconnected, so the sum over the remaining ones cannot be decrypted or unmasked."""


class TreeAborted(FedboostError):
    """Thrown into a program (a generator) in place of a sum that will not arrive. The tree is finished with
    its current leaves."""


class TrainingStopped(FedboostError):
    """Thrown into a program (a generator) after a round, in place of the answer to its next query. The model
    keeps the rounds completed so far."""


class SessionFailed(FedboostError):
    """A session ended without a model. The message names the site and the cause."""


class DurabilityError(Exception):
    """A journal, an audit log or a site's memory (a SQLite file) cannot be written. The process must exit;
    after a restart, the session can resume. It is not a FedboostError, so handlers of FedboostError do not
    catch it."""


class TableWarning(UserWarning):
    """A finding about a table that can harm training, or a choice made while drafting terms. `fedboost check`
    lists all findings."""
