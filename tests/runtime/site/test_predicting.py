"""The process that asks for a prediction, where the aggregator tells of another end than came."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from raised import raised

from fedboost.errors import SessionFailed
from fedboost.runtime.site import node as predicting
from fedboost.runtime.site.config import PartyConfig


class Node(predicting.PredictingNode):
    """A node to which no session is offered, or whose session ends this way."""

    fault = None

    def __init__(self, *_):
        self._made = []

    def ask_for(self, min_common_rows):
        return None

    async def run(self, wait, once):
        if self.fault is None:
            await asyncio.Event().wait()
        raise self.fault


def predicted(monkeypatch, node, training):
    monkeypatch.setattr(predicting, "PredictingNode", node)
    monkeypatch.setattr(predicting.Connection, "train", lambda *_: training)
    terms = SimpleNamespace(vertical=SimpleNamespace(label_holder="bank"))
    model = SimpleNamespace(terms=terms, party="bank")
    config = PartyConfig(party="bank", aggregator="localhost:1")
    return predicting.predict_with_parties(config, None, model, None, 0.05)


def test_a_session_that_was_over_before_ends_without_a_prediction(monkeypatch):
    """It was that of a process that was killed at its end, say; nothing is offered any more."""
    with raised(SessionFailed, "prediction-missing"):
        predicted(monkeypatch, Node, SimpleNamespace(model="an earlier one"))


def test_what_ends_the_site_is_told_while_the_aggregator_says_nothing(monkeypatch):
    class Broken(Node):
        fault = SessionFailed("test", "its memory cannot be written")

    class Waiting:
        @property
        def model(self):
            raise AssertionError("nobody looks") if asked.wait(10) else TimeoutError

        def stop(self):
            asked.set()

    asked = threading.Event()
    try:
        with pytest.raises(SessionFailed, match="its memory cannot be written"):
            predicted(monkeypatch, Broken, Waiting())
    finally:
        asked.set()
