"""The result of a training: the model, its metrics and traffic."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedboost.people import html
from fedboost.people.report.facts import SessionFacts
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.parts import Part
from fedboost.runtime.files import saved
from fedboost.runtime.model_file import Model
from fedboost.runtime.party_model import PartyModel, assembled, trained_model_of
from fedboost.runtime.telemetry import Meter, Row


@dataclass(frozen=True)
class Result:
    """The result of a training.

    history: a row a round with `round`, the metrics by name (as an analyst gets them,
    `metrics.published`), `seconds`, and `bytes` (sent and received by all parties in that round); traffic:
    party to (bytes sent, bytes received), all turns together; party_models: party to the part of the model
    that it would keep, with `model = "parties"` in the terms. As all parties are here, `model` is the whole
    one even so.
    """

    model: Model
    history: list[Row] = field(repr=False)
    traffic: dict[str, tuple[int, int]] = field(repr=False)
    party_models: dict[str, PartyModel] = field(default_factory=dict, repr=False)

    def report(
        self,
        path: Path | str | None = None,
        data: Any = None,
        keys: Path | str | None = None,
        min_count: int | None = None,
    ) -> str:
        """The report of the model as `Model.report` gives it, with traffic and time of each round."""
        from fedboost.runtime.report import report_of

        session = SessionFacts(self.traffic, self.history)
        return saved(report_of(self.model, data, keys, min_count, session), path)

    def _repr_html_(self) -> str:
        return html.result_html(self.model.outline, self.model.importance(), self.traffic)


def finish(session: AggregatorSession, meter: Meter, parts: Iterable[Part] = ()) -> Result:
    """The result of a session that is over. parts: of the model, where parties keep them. Raises
    SessionFailed if it has no model."""
    model = trained_model_of(session)
    party_models = {part.party: PartyModel.of(part) for part in parts}
    if isinstance(model, PartyModel):
        model = assembled([model, *party_models.values()])
    return Result(Model(**vars(model)), meter.history, meter.traffic, party_models)
