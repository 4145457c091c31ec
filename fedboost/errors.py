"""The exceptions of fedboost. A message says what happened, where, to whom, and what to do next.

The message of each is a sentence for people: the command line prints it alone and exits with code 2. Any
other exception that escapes is a defect of fedboost.
"""

import re

MAX_QUOTE_LENGTH = 500
"""Characters of foreign text in a message."""
_UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    r"\U000e0100-\U000e01ef]"
)
"""Letters and marks without ink, beside the characters that Python does not print."""


def printable(text: str) -> str:
    """A text on one line, with escapes for characters that are not seen: two names that differ look
    different."""
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    seen = (c.isprintable() and not _UNSEEN.match(c) for c in text)
    return "".join(c if s else c.encode("unicode_escape").decode() for c, s in zip(text, seen, strict=True))


def quoted(text: str, longest: int = MAX_QUOTE_LENGTH) -> str:
    """A foreign text as one printable line of bounded length."""
    return printable(text if len(text) <= longest else text[:longest] + "…")


class FedboostError(Exception):
    """Base of every error fedboost raises on purpose.

    `detail` is for the site alone (values and row numbers of its table): `str` includes it, `public`, which
    travels, does not.
    """

    def __init__(self, public: str, detail: str = "") -> None:
        super().__init__(f"{public}: {detail}" if detail else public)
        self.public = public
        self.detail = detail


class ConfigError(FedboostError):
    """Input of the user (terms, config, data, model file, command line) that cannot be used."""


class Altered(ConfigError):
    """A model file that was changed after fedboost wrote it."""


class LocalProtocolError(FedboostError):
    """A violation of the protocol by this process: a defect of fedboost or of a custom program."""


class PeerError(FedboostError):
    """A violation of the protocol by the other end, which costs it its connection."""


class Refused(FedboostError):
    """A request that the terms, or the policy or data of a site, forbid."""


class SchemaMismatch(Refused):
    """Rows of a site that do not fit the terms. `public` is the same for every cause, which would tell of
    single rows."""


class RosterTooSmall(FedboostError):
    """The loss of too many parties to open the sum of the others."""


class TreeAborted(FedboostError):
    """Thrown into a program instead of a sum that will not come: the tree ends with the leaves it has."""


class TrainingStopped(FedboostError):
    """Thrown into a program after a round, instead of the answer to its next query: the model is that of the
    rounds so far."""


class SessionFailed(FedboostError):
    """The end of a session without a model; the message names the site and the cause."""


class DurabilityError(Exception):
    """A journal, an audit log or a site's memory cannot be written: the process must end, and a later one can
    go on. It is no FedboostError, so that no handler of those goes on instead."""


class TableWarning(UserWarning):
    """An oddity of a table that spoils a training or was decided by a draft; `fedboost check` says all."""
