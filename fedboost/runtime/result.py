"""The result of a training: the model, its metrics and traffic."""

from dataclasses import dataclass, field

from fedboost.people import html
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.runtime.model_file import Model
from fedboost.runtime.signed_model import signed_model_of
from fedboost.runtime.telemetry import Meter, Row


@dataclass(frozen=True)
class Result:
    """The result of a training.

    history: a row a round with `round`, the metrics by name (as an analyst gets them,
    `metrics.published`), `seconds`, and `bytes` (sent and received by all parties in that round); traffic:
    party to (bytes sent, bytes received), all turns together.
    """

    model: Model
    history: list[Row] = field(repr=False)
    traffic: dict[str, tuple[int, int]] = field(repr=False)

    def _repr_html_(self) -> str:
        return html.result_html(self.model.outline, self.model.importance(), self.traffic)


def finish(session: AggregatorSession, meter: Meter) -> Result:
    """The result of a session that is over. Raises SessionFailed if it has no model."""
    model = signed_model_of(session)
    return Result(Model(**vars(model)), meter.history, meter.traffic)
