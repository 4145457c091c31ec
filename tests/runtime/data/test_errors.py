"""What of a table's errors may leave the site."""

import pyarrow as pa
import pytest
from columns import COLOURS, KINDS, NEUTRAL, NUMERIC, REGRESSION, WEIGHTED, refusal, terms

from fedboost.errors import Refused
from fedboost.holders.columns import holder_for
from fedboost.protocol.messages import Leave, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.terms.terms import Terms

SECRET, ROW = "SECRET-4711", 317
TOO_LARGE = "has a value that is infinite or too large for a 32-bit float"
HINT = "; set positive under [columns] to the label value that counts as 1"
MISSING = "has missing values, fill them in or drop their rows"
FIRST = f"the first is in row {ROW}"
NO_NUMBER = f"the first value that is not a number is '{SECRET}' in row {ROW}"
WORDS = terms(numeric=["x"], positive="yes")


def planted(name: str, cell: object, usual: object = 1) -> pa.Table:
    """400 rows that every terms here could use, but for one cell of the column `name`."""
    columns: dict[str, list[object]] = {column: [1] * 400 for column in ("x", "y", "w")}
    columns |= {"c": ["red"] * 400, name: [usual] * 400}
    columns[name][ROW - 1] = cell
    return pa.table(columns)


@pytest.mark.parametrize(
    ("table", "agreed", "why", "where"),
    [
        (planted("x", 1).slice(0, 0), NUMERIC, "the table has no rows", ""),
        (planted("x", SECRET, "1"), NUMERIC, "column 'x' is string here, the terms say numeric", NO_NUMBER),
        (
            planted("x", {SECRET: 4711.25}, None),
            NUMERIC,
            "column 'x' is struct here, the terms say numeric",
            "",
        ),
        (
            planted("x", [{SECRET: 4711.25}], None),
            NUMERIC,
            "column 'x' is list here, the terms say numeric",
            "",
        ),
        (planted("x", 4711e300, 1.5), NUMERIC, f"column 'x' {TOO_LARGE}", f"it is 4.711e+303 in row {ROW}"),
        (
            planted("x", "4711e300", "1"),
            NUMERIC,
            f"column 'x' {TOO_LARGE}",
            f"it is '4711e300' in row {ROW}",
        ),
        (
            planted("c", {SECRET: 4711.25}, None),
            COLOURS,
            "column 'c' is struct here, categorical takes text, numbers or booleans",
            "",
        ),
        (
            planted("y", SECRET, "1"),
            NUMERIC,
            f"label column 'y' is string here, the terms say numeric{HINT}",
            NO_NUMBER,
        ),
        (
            planted("y", SECRET, "1"),
            REGRESSION,
            "label column 'y' is string here, the terms say numeric",
            NO_NUMBER,
        ),
        (
            planted("y", 4711.25, 1.0),
            NUMERIC,
            f"column 'y' is the label of binary:logistic, which takes 0 or 1{HINT}",
            f"it is 4711.25 in row {ROW}",
        ),
        (
            planted("y", 4711e20, 1.0),
            REGRESSION,
            "column 'y' is the label of reg:squarederror, which takes a number of magnitude at most 2**60",
            f"it is 4.711e+23 in row {ROW}",
        ),
        (
            planted("y", 4711e300, 1.0),
            REGRESSION,
            f"label column 'y' {TOO_LARGE}",
            f"it is 4.711e+303 in row {ROW}",
        ),
        (planted("y", None), NUMERIC, f"label 'y' {MISSING}", FIRST),
        (planted("y", None, SECRET), WORDS, f"label 'y' {MISSING}", FIRST),
        (
            pa.table({"x": [1, 1, 1], "y": ["yes", "no", SECRET]}),
            WORDS,
            "label 'y' has more than two values",
            f"'yes', 'no', '{SECRET}'",
        ),
        (
            planted("y", SECRET, "no"),
            WORDS,
            "positive = 'yes' is neither value of label 'y'",
            f"'no', '{SECRET}'",
        ),
        (
            planted("y", {SECRET: 4711.25}, None),
            WORDS,
            "column 'y' is struct here, categorical takes text, numbers or booleans",
            "",
        ),
        (
            planted("y", SECRET, "a"),
            KINDS,
            "column 'y' is the label, and has a value that is none of columns.classes "
            "('b', 'a', '10', 'true'); add it there, or drop its rows",
            f"it is '{SECRET}' in row {ROW}",
        ),
        (planted("w", None), WEIGHTED, f"weight 'w' {MISSING}", FIRST),
        (
            planted("w", -4711.25, 1.0),
            WEIGHTED,
            "column 'w' has a weight below 0",
            f"it is -4711.25 in row {ROW}",
        ),
        (planted("w", SECRET, "1"), WEIGHTED, "column 'w' is string here, the terms say numeric", NO_NUMBER),
        (
            planted("w", 4711e300, 1.0),
            WEIGHTED,
            f"column 'w' {TOO_LARGE}",
            f"it is 4.711e+303 in row {ROW}",
        ),
    ],
)
def test_the_others_read_one_sentence_whatever_does_not_fit(
    table: pa.Table, agreed: Terms, why: str, where: str
) -> None:
    assert refusal(table, agreed) == (f"{why}: {where}" if where else why)


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
        assert (error.public, error.detail) == (f"party north: {public}", detail)


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
