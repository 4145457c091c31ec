"""Reports of the models that a console keeps, drawn beside the event loop, one at a time.

Promises: the last ones are drawn once.
Refuses: models that are gone (Refusal).
"""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from fedboost.people.console.shell import EndedFacts
from fedboost.people.report.facts import ResultFacts, SessionFacts
from fedboost.people.report.results import description_page, evaluation_page
from fedboost.protocol.key_exchange import Trust
from fedboost.runtime.aggregator.archive import Archive
from fedboost.runtime.console.kept import Kept
from fedboost.runtime.signed_model import SignedModel, verified, written
from fedboost.runtime.summaries import is_description, is_evaluation
from fedboost.runtime.web.guard import Refusal
from fedboost.terms.session import TO_DESCRIBE, TO_EVALUATE
from fedboost.terms.terms import Terms

MAX_DRAWN = 4
"""Reports that are kept."""
_RESULTS: dict[str, tuple[Callable[[Any, Terms], bool], Callable[[ResultFacts], str]]] = {
    TO_DESCRIBE: (is_description, description_page),
    TO_EVALUATE: (is_evaluation, evaluation_page),
}
"""Sessions that leave a result in place of trees, by their task: what tells it, and its page."""


class Reports:
    """The reports of an archive's models. trust: by which signatures are checked; None without keys."""

    def __init__(self, archive: Archive, trust: Trust | None) -> None:
        self._archive = archive
        self._trust = trust
        self._kept: Kept[str] = Kept(MAX_DRAWN)

    async def written(self, ended: EndedFacts) -> str:
        """The report of a session's model, as a page."""
        return await self._kept.of((ended.name, ended.ended), partial(self._draw, ended))

    def _draw(self, ended: EndedFacts) -> str:
        data = self._archive.model(ended.name)
        if data is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "the model of this session is not kept")
        model = SignedModel.from_bytes(data, ended.name)
        session = SessionFacts(ended.traffic, ended.rounds)
        if model.terms.task in _RESULTS:
            fits, page = _RESULTS[model.terms.task]
            if not fits(model.summary, model.terms):
                raise Refusal(HTTPStatus.NOT_FOUND, "what this session left is no result under its terms")
            return page(ResultFacts(model.summary, model.terms, tuple(model.attestations), session))
        trust = self._trust
        known = None
        if trust is not None:
            known = verified(model, "model", trust.roots, trust.clock(), trust.denied)
        return written(model, verification=known, session=session)
