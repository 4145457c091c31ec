"""What was asked of a site: requests of analysts for a session, or for a check, in files of its state folder.

Promises: an entry for each terms and analyst, with what the site answered last; they are bounded in number
and bytes, whatever is asked: beyond that the oldest of who asked most goes. A file is written whole or not at
all, for its owner's eyes alone. Nothing here ends a session: what cannot be kept is a warning in the log.
Refuses: nothing.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError, FedboostError, quoted
from fedboost.runtime.files import folder_name, write_atomically
from fedboost.runtime.site.approval import lacks_approval
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory_file import make_folder
from fedboost.terms.reading import Frozen, read_model
from fedboost.terms.terms import Terms

OWNER_ALONE = 0o600
MAX_REQUESTS = 64
MAX_TERMS_BYTES = 4 << 20
"""Of one request: as many as an analyst can send."""
MAX_BYTES = 64 << 20
"""Of all requests together."""
MAX_ANSWER = 2000
"""Characters of an answer that are kept."""
SAME_SECONDS = 60.0
"""The same request with the same answer is written again after this."""
ANSWERING = "it has not been answered yet"


class Asked(Frozen):
    """A request. analyst: who signed it, '' without keys; first, last: when, seconds since 1970; session: its
    name, '' of a check; answer: why this site did not take part, or would not; '' where it did, or would;
    bytes: of its terms; lacks_approval: it was refused, and an approval would have changed that."""

    digest: str
    analyst: str
    task: str
    parties: int
    first: float
    last: float
    session: str
    answer: str
    bytes: int
    lacks_approval: bool

    @property
    def name(self) -> str:
        """Its name in addresses and on the disk: of its digest and analyst."""
        return hashlib.sha256(f"{self.digest} {self.analyst}".encode()).hexdigest()[:32]


class AskedFolder:
    """The requests of a site."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        alone = config.rows_name == config.party  # else other parties may have the same folder
        folder = "asked" if alone else f"{folder_name(config.party)}.asked"
        self._config = config
        self._folder = state_folder(config) / folder
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[str, Asked] = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                entry = read_model(Asked, _read(path)["asked"], str(path))
            except ConfigError as error:
                log.warning(
                    "a request that was kept cannot be read", file=str(path), reason=quoted(str(error))
                )
                continue
            self._known[entry.name] = entry
        self._make_room()

    def all(self) -> list[Asked]:
        """The requests, those asked last first."""
        with self._lock:
            return sorted(self._known.values(), key=lambda entry: -entry.last)

    def find(self, name: str) -> Asked | None:
        """A request by its name."""
        with self._lock:
            return self._known.get(name)

    def terms(self, entry: Asked) -> Terms:
        """The terms of a request. ConfigError if they are not there as they were written."""
        path = self._file(entry)
        terms = Terms.from_canonical(str(_read(path).get("terms")))
        if terms.digest != entry.digest:
            raise ConfigError(f"{path}: changed after it was written: it is not of the digest {entry.digest}")
        return terms

    def note(self, terms: Terms, analyst: str, session: str, answer: str) -> None:
        """Keep a request, or what was answered to one that is kept."""
        lacking = answer not in ("", ANSWERING) and self._lacks_approval(terms, analyst)
        now = time.time()
        text = terms.canonical()
        entry = Asked(
            digest=terms.digest,
            analyst=analyst,
            task=terms.task,
            parties=len(terms.parties),
            first=now,
            last=now,
            session=session,
            answer=quoted(answer, MAX_ANSWER),
            bytes=len(text.encode()),
            lacks_approval=lacking,
        )
        if entry.bytes > MAX_TERMS_BYTES:
            self._log.warning("a request is not kept: its terms are too long", terms=entry.digest)
            return
        with self._lock:
            before = self._known.get(entry.name)
            if before is not None:
                same = (before.answer, before.session) == (entry.answer, session)
                same = same and before.lacks_approval == lacking
                if same and now - before.last < SAME_SECONDS:
                    return
                entry = entry.model_copy(update={"first": before.first})
            try:
                make_folder(self._folder)
                content = {"asked": entry.model_dump(), "terms": text}
                write_atomically(self._file(entry), json.dumps(content).encode(), OWNER_ALONE)
            except FedboostError as error:
                self._log.warning("a request is not kept", terms=entry.digest, reason=str(error))
                return
            self._known[entry.name] = entry
            self._make_room()

    def _lacks_approval(self, terms: Terms, analyst: str) -> bool:
        try:
            return lacks_approval(self._config, terms, analyst)
        except ConfigError as error:
            self._log.warning("not known if an approval is lacking", reason=str(error))
            return True

    def _make_room(self) -> None:
        """Drop the oldest requests of who asked most while there are too many."""
        while len(self._known) > MAX_REQUESTS or sum(e.bytes for e in self._known.values()) > MAX_BYTES:
            sizes = Counter[str]()
            for entry in self._known.values():
                sizes[entry.analyst] += entry.bytes + MAX_BYTES // MAX_REQUESTS
            most = sizes.most_common(1)[0][0]
            oldest = min((e for e in self._known.values() if e.analyst == most), key=lambda e: e.last)
            del self._known[oldest.name]
            try:
                self._file(oldest).unlink(missing_ok=True)
            except OSError as error:
                self._log.warning("an old request cannot be removed", reason=quoted(str(error)))

    def _file(self, entry: Asked) -> Path:
        return self._folder / f"{entry.name}.json"


def _read(path: Path) -> Mapping[str, Any]:
    """A file of a request. ConfigError."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("asked"), dict):
        raise ConfigError(f"{path}: is no request")
    return values
