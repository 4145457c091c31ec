"""A prediction that a label holder asks for, and takes part in itself.

Promises: one process asks the aggregator for the session and is the party of it; the other sites' sessions
are left alone; the predictions are in the order of the table.
Refuses: a part that is not the label holder's (ConfigError), and what other sites or the aggregator refuse
(SessionFailed).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from fedboost.boosting.queries.ids import check_batch
from fedboost.errors import ConfigError, SessionFailed
from fedboost.holders.columns import holder_for
from fedboost.holders.prediction import Prediction, PredictionHolder
from fedboost.protocol.contracts import Holder
from fedboost.protocol.messages import Offer, ToParty
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits, SessionOffer
from fedboost.runtime.analyst import Connection, OnWaiting, Training
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import column_faults, rows_to_predict
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.party_model import PartyModel, terms_to_predict
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import check_alone
from fedboost.runtime.site.node import PartyNode
from fedboost.runtime.site.review import NO_LIMITS
from fedboost.terms.terms import Terms


class PredictingNode(PartyNode):
    """The label holder in the session that it asked for; config: its `data` are the rows to predict."""

    def __init__(self, config: PartyConfig, log: Any, bundle: Bundle | None, model: PartyModel) -> None:
        if memory_path(config).parent.exists():
            check_alone(memory_path(config), config.party, "; stop `fedboost party` first")
        super().__init__(config, log, bundle)
        self._model = model
        self._made: list[Holder] = []
        self.terms = model.terms

    def ask_for(self, min_common_rows: int | None) -> Terms:
        """The terms to ask for: with all rows of the table."""
        assert self._rows.table is not None
        trained = self._model.terms
        table = self._rows.table.under(trained.columns.row_id)
        needed = trained.blocks.columns_of(self._config.party).unlabelled()
        for fault in column_faults(table, needed):
            raise ConfigError(f"{shown(self._config.data)}: {fault.public}", fault.detail)
        rows = rows_to_predict(table, self._model.terms)
        self.terms = terms_to_predict(self._model, rows, min_common_rows)
        check_batch(self.terms)
        return self.terms

    @property
    def prediction(self) -> Prediction:
        """What was predicted. SessionFailed if nothing was."""
        for holder in reversed(self._made):
            if isinstance(holder, PredictionHolder) and holder.prediction is not None:
                return holder.prediction
        raise SessionFailed("the session ended without a prediction")

    def _session_for(self, message: ToParty) -> PartySession | None:
        """None for sessions of others, which wait for this party as if it were away."""
        if isinstance(message, Offer) and message.terms != self.terms:
            return None
        return super()._session_for(message)

    def _permit(self, offer: SessionOffer) -> Limits:
        """The site asked for it itself."""
        return NO_LIMITS

    def _holder(self) -> Callable[[Terms, bytes], Holder]:
        name, nthread = self._config.party, self._config.nthread
        make = holder_for(self._rows.read, name, nthread, lambda terms: self._model.booster)

        def hold(terms: Terms, secret: bytes) -> Holder:
            self._made.append(make(terms, secret))
            return self._made[-1]

        return hold


def predict_with_parties(
    config: PartyConfig,
    bundle: Bundle | None,
    model: PartyModel,
    log: Any,
    wait: float,
    min_common_rows: int | None = None,
    on_waiting: OnWaiting | None = None,
) -> Prediction:
    """Predict the rows of the label holder's table together with the other parties of the model.

    config: the label holder's, with the rows as its `data`; model: its part; wait: seconds to wait for an
    aggregator that does not answer; min_common_rows: as in terms, unless it is to be that of the training;
    on_waiting: called with the parties that the session waits for.
    """
    holder = model.terms.vertical.label_holder
    if config.party != holder or model.party != holder:
        whose = f"the part of {model.party}" if model.party else "the structure of a model"
        raise ConfigError(
            f"label holder {holder} predicts, with its own part of the model: this is {whose}, and the "
            f"site's file that of {config.party}"
        )
    node = PredictingNode(config, log, bundle, model)
    try:
        terms = node.ask_for(min_common_rows)
        training = Connection(config.aggregator, bundle).train(terms, wait, on_waiting)
    except BaseException:
        node.close()
        raise
    asyncio.run(_attend(node, training, wait))
    return node.prediction


async def _attend(node: PartyNode, training: Training, wait: float) -> None:
    """Take part until the session is over; raises what ended it without a prediction. wait: seconds, too,
    for its end here once the aggregator says it is over: one that ended before this process never comes."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def follow() -> None:
        fault: Exception | None = None
        try:
            _ = training.model
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, asked, fault)

    attending = asyncio.create_task(node.run(wait, once=True))
    threading.Thread(target=follow, daemon=True).start()  # it may wait for ever, and the process end
    try:
        done, late = await asyncio.wait({asked, attending}, return_when=asyncio.FIRST_COMPLETED)
        if late and all(task.exception() is None for task in done):
            await asyncio.wait(late, timeout=wait if asked.done() else None)
        for task in (asked, attending):
            if task.done():
                task.result()
    except asyncio.CancelledError:
        await asyncio.to_thread(training.stop)
        raise
    finally:
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)


def _settle(asked: "asyncio.Future[None]", fault: Exception | None) -> None:
    if asked.done():
        return
    if fault is None:
        asked.set_result(None)
    else:
        asked.set_exception(fault)
