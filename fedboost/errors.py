"""The few exceptions of fedboost. A message says what, where, who, and what to do next.

Whoever raises one of these has written a sentence for a person; the command line prints that sentence
alone and exits with code 2. Anything else that escapes is a defect of fedboost.
"""

MAX_QUOTE_LENGTH = 500
"""Characters of somebody else's text that stand in one of our sentences."""


def printable(text: str) -> str:
    """A text on one line, with escapes for what a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str, longest: int = MAX_QUOTE_LENGTH) -> str:
    """Somebody else's text as one printable line of bounded length."""
    return printable(text if len(text) <= longest else text[:longest] + "…")


class FedboostError(Exception):
    """Base of every error fedboost raises on purpose.

    `detail` is what only the site itself may read (values and row numbers of its table): `str` has it,
    `public`, which is what travels, has not.
    """

    def __init__(self, public: str, detail: str = "") -> None:
        super().__init__(f"{public}: {detail}" if detail else public)
        self.public = public
        self.detail = detail


class ConfigError(FedboostError):
    """What the user gave (terms, config, data, model file, command line) cannot be used."""


class LocalProtocolError(FedboostError):
    """This process broke the protocol: a defect of fedboost or of a custom program."""


class PeerError(FedboostError):
    """The other end sent what the protocol forbids; it costs the sender its connection."""


class Refused(FedboostError):
    """The terms, or a site's own policy or data, forbid what was asked."""


class Misfit(Refused):
    """The rows of a site do not fit the terms. `public` is the same whatever does not fit: it would tell of
    single rows."""


class RosterTooSmall(FedboostError):
    """So many parties are lost that the sum of the others could not be opened."""


class CutShort(FedboostError):
    """Thrown into a program in the place of a sum that will not come: the tree ends where it stands."""


class Enough(FedboostError):
    """Thrown into a program after a round, in the place of what it asks next: the model is that of the rounds
    so far."""


class SessionFailed(FedboostError):
    """The session ended without a model; the message names the site and the cause."""
