"""Somebody asks for predictions to learn who is known elsewhere: a lone id, a longer list than was said, an
id that is guessed by a hash."""

import hmac

import numpy as np

from fedboost.boosting.queries.ids import CHECK_BYTES, AlignQuery
from fedboost.holders.alignment import CHECK as CHECK_KIND
from fedboost.holders.alignment import KNOWN
from fedboost.privacy import packing
from fedboost.protocol import relaying
from fedboost.protocol.messages import Join, Relay, Report
from tests.helpers.predictions import FEWEST, Predicting, tables_of


def test_a_feature_holder_alone_gets_no_hash_of_an_id_that_it_does_not_have(monkeypatch):
    """It says that it knows one more row: by the hash of that id it would find it among all that can be."""
    told, seal, opens = {}, relaying.Ends.seal, relaying.Ends.open

    def lying(ends, send, ask, number):
        if (ends.me, send.kind) == ("telco", KNOWN):
            known = np.unpackbits(np.frombuffer(send.content, np.uint8), count=ask.query.total)
            told["row"] = np.flatnonzero(known == 0)[0]
            claimed = np.zeros_like(known)
            claimed[told["row"]] = 1
            send = type(send)(send.kind, send.to, np.packbits(claimed).tobytes(), send.about)
        return seal(ends, send, ask, number)

    def opened(ends, sealed, receive, ask, number):
        content = opens(ends, sealed, receive, ask, number)
        if (ends.me, receive.kind) == ("telco", CHECK_KIND):
            told["hash"] = content
        return content

    monkeypatch.setattr(relaying.Ends, "seal", lying)
    monkeypatch.setattr(relaying.Ends, "open", opened)
    session = Predicting().play()
    found = [
        number
        for number in range(500)
        if len(told.get("hash", b"")) == CHECK_BYTES
        and hmac.digest(told["hash"][:32], packing.pack(str(number).encode()), "sha256") == told["hash"][32:]
    ]
    assert found == []
    assert session.error == (
        "party bank left: party telco says it has other rows than those that the aggregator matched: ask both"
    )


def test_fewer_rows_than_must_be_common_are_refused_before_ids_are_matched():
    """Else each refusal would say if a single id is known, at the price of one row."""
    tables = tables_of("three holders")
    tables["bank"] = tables["bank"].slice(0, FEWEST - 1)
    session = Predicting(tables=tables).play()
    assert (
        f"{FEWEST - 1} rows are to be predicted, and the terms say min_common_rows = {FEWEST}"
        in session.error
    )
    assert not session.said(Relay)
    assert not session.said(Join, "telco")


def test_a_longer_list_of_the_label_holder_than_is_predicted_is_not_matched():
    """An aggregator and a label holder would learn of `max_ids` ids who is known, at the price of a batch."""

    def down(party, message):
        if party == "bank" or getattr(message, "turn", 0) != 2 or not hasattr(message, "query"):
            return None
        sizes = message.query.sizes
        return [type(message)(2, message.attempt, message.roster, AlignQuery((sizes[0] + 500, *sizes[1:])))]

    session = Predicting(down=down).play()
    rows = session.tables["bank"].num_rows
    assert session.left("telco") == (
        f"label holder bank has {rows + 500} rows to predict, and the terms say predict_rows = {rows}"
    )
    assert not session.said(Relay, "telco")
    assert not [report for report in session.said(Report, "telco") if report.turn == 2]
