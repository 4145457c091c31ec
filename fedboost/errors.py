"""The exceptions of fedboost.

A message is one sentence: what happened, where, to whom, and what to do next. The command line prints only
that sentence and exits with code 2. Any other exception that escapes is a defect of fedboost.
"""

import re

MAX_QUOTE_LENGTH = 500
"""Maximum number of characters of foreign text in a message."""
_UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    r"\U000e0100-\U000e01ef]"
)
"""Letters and marks that draw nothing although Python calls them printable."""


def printable(text: str) -> str:
    """Return the text on one line with invisible characters escaped, so that two names that differ also look
    different."""
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    seen = (c.isprintable() and not _UNSEEN.match(c) for c in text)
    return "".join(c if s else c.encode("unicode_escape").decode() for c, s in zip(text, seen, strict=True))


def quoted(text: str, longest: int = MAX_QUOTE_LENGTH) -> str:
    """Return a foreign text as one printable line of bounded length."""
    return printable(text if len(text) <= longest else text[:longest] + "…")


class FedboostError(Exception):
    """Base class of every error that fedboost raises on purpose.

    Args:
        code: stable name of the cause, such as `table-column-missing`; docs/errors.md lists all codes.
        public: the sentence, which may leave the site.
        detail: values and row numbers of a site's table. `str(error)` includes it; it never leaves the site.
    """

    def __init__(self, code: str, public: str, detail: str = "") -> None:
        super().__init__(f"{public}: {detail}" if detail else public)
        self.code = code
        self.public = public
        self.detail = detail


class ConfigError(FedboostError):
    """The user's input (terms, configuration, data, model file or command line) cannot be used."""


class Altered(ConfigError):
    """A model file was changed after fedboost wrote it."""


class LocalProtocolError(FedboostError):
    """This process violated the protocol: a defect of fedboost or of a custom program."""


class PeerError(FedboostError):
    """The other end violated the protocol, so its connection is closed."""


class Refused(FedboostError):
    """The terms, or a site's policy or data, forbid the request."""


class SchemaMismatch(Refused):
    """A site's rows do not fit the terms. `code` and `public` are the same for every cause: the cause would
    reveal single rows."""


class RosterTooSmall(FedboostError):
    """Too many parties were lost: the sum over the others cannot be opened."""


class TreeAborted(FedboostError):
    """Thrown into a program in place of a sum that will not arrive: the tree ends with the leaves it has."""


class TrainingStopped(FedboostError):
    """Thrown into a program after a round, in place of the answer to its next query: the model keeps the
    rounds so far."""


class SessionFailed(FedboostError):
    """A session ended without a model; the message names the site and the cause."""


class DurabilityError(Exception):
    """A journal, an audit log or a site's memory cannot be written. The process must end; a later process can
    resume. It is not a FedboostError, so no handler of FedboostError can carry on after it."""


class TableWarning(UserWarning):
    """An oddity in a table that can spoil a training, or a choice that a draft made; `fedboost check` lists
    them all."""
