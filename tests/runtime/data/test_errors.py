"""What of a table's errors may leave the site: only that rows do not fit the terms (`columns.refusal`)."""

import pyarrow as pa
import pytest
from columns import NEUTRAL, NUMERIC, WEIGHTED, terms

from fedboost.errors import Refused
from fedboost.holders.columns import holder_for
from fedboost.protocol.messages import Leave, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.terms.terms import Terms

SECRET, ROW = "SECRET-4711", 317


def planted(name: str, cell: object, usual: object = 1) -> pa.Table:
    """400 rows that every terms here could use, but for one cell of the column `name`."""
    columns: dict[str, list[object]] = {column: [1] * 400 for column in ("x", "y", "w")}
    columns |= {"c": ["red"] * 400, name: [usual] * 400}
    columns[name][ROW - 1] = cell
    return pa.table(columns)


@pytest.mark.parametrize(
    ("agreed", "public", "detail"),
    [
        (NUMERIC, "column 'x' is missing", f"the columns are '{SECRET}', 'y'"),
        (terms(numeric=["SECRET-471"]), "column 'SECRET-471' is missing", f"did you mean {SECRET}?"),
    ],
)
def test_the_others_read_which_column_is_absent_and_no_other(agreed: Terms, public: str, detail: str) -> None:
    for values in ([1], [float("inf")], ["no"], [None]):  # whatever the rows hold
        with pytest.raises(Refused) as caught:
            to_shard(pa.table({SECRET: [1], "y": values}), agreed, "north")
        error = caught.value
        fix = "if north does not have it, add it to columns.absent in the terms"
        assert (error.public, error.detail) == (f"party north: {public}; {fix}", detail)


@pytest.mark.parametrize(
    ("table", "agreed", "value"),
    [(planted("x", SECRET, "1"), NUMERIC, SECRET), (planted("w", -4711.25, 1.0), WEIGHTED, "-4711.25")],
)
def test_a_party_leaves_without_quoting_its_table(table: pa.Table, agreed: Terms, value: str) -> None:
    agreed = agreed.with_parties(["north", "south", "east"])
    session = PartySession(
        Site("north", holder_for(lambda wanted: to_shard(table, wanted, "north"), "north"), bytes)
    )
    assert list(session.handle(Offer("s", agreed))) == [Leave(NEUTRAL, "s")]
    assert session.ended is not None
    assert session.ended.startswith(f"{NEUTRAL}: column ")
    assert value in session.ended
    assert session.ended.endswith(f" in row {ROW}")
