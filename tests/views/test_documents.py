"""Documents on a terminal and in a page: what is many is counted, and nothing is lost."""

import pytest

from fedboost.views import as_html, as_text
from fedboost.views.document import (
    MAX_NAMES,
    Document,
    Entries,
    Names,
    Paragraph,
    Section,
    Shortened,
    Table,
    Verdict,
)

NAMES = [f"column {number}" for number in range(MAX_NAMES + 1)]


def on_a_terminal(*blocks, full=False):
    document = Document("title", "lead", [Verdict("The answer."), *blocks])
    return "\n".join(map(str, as_text.text(document, "--full shows", full)))


def test_many_names_are_counted_on_a_terminal_and_all_shown_on_request():
    entries = Entries(
        [("features", (f"{len(NAMES)}: ", Names(NAMES))), ("", Shortened("All 9 names …", "a, b, c"))]
    )
    short, full = on_a_terminal(entries), on_a_terminal(entries, full=True)
    assert 'features     21: "column 0", "column 1"' in short
    assert f"and {MAX_NAMES + 1 - 8} more" in " ".join(short.split())
    assert ('"column 20"' in short, '"column 20"' in " ".join(full.split())) == (False, True)
    assert ("a, b, c" in short, "a, b, c" in full) == (False, True)
    assert short.endswith("--full shows more: all names.")
    assert "--full" not in full


def test_few_names_are_shown_with_their_remarks():
    assert on_a_terminal(Entries([("x", Names(["a", "b c"], [" 1 (!)", " 2"]))])).splitlines()[
        -1
    ].split() == ["x", "a", "1", "(!),", '"b', 'c"', "2"]


def test_what_is_folded_is_named_and_shown_on_request():
    rows = [(str(number),) for number in range(60)]
    folded = Section("s", "Inside", [Paragraph("a paragraph")], folded=True)
    blocks = (
        folded,
        Section("l", "Levels", [Paragraph("a level")], folded=True),
        Table("Rows", ["n"], rows, folded=False),
    )
    short, full = on_a_terminal(*blocks), on_a_terminal(*blocks, full=True)
    assert short.endswith("and 20 more\n\n--full shows more: inside; levels.")
    for words in ("A paragraph", "A level"):
        assert (words in short, words in full) == (False, True)
    assert "more" not in full


def test_a_page_has_all_names_folded_where_they_are_many():
    many, few = (str(as_html.inline(Names(names))) for names in (NAMES, NAMES[:-1]))
    assert many.startswith("<details><summary>&quot;column 0&quot;, ")
    assert all(f"&quot;{name}&quot;" in many for name in NAMES)
    assert "details" not in few
    whole = "x" * 9000
    assert whole in as_html.inline(Shortened("x …", whole))


@pytest.mark.parametrize("name", ['a", "b', "a, b", "<b>", "a\u202eb"])
def test_a_name_never_reads_as_two_or_as_markup(name):
    drawn = str(as_html.inline(Names([name, "c"])))
    assert drawn.endswith(", c")
    assert drawn.count("&quot;") >= 2
    assert ("<b>" in drawn, "\u202e" in drawn) == (False, False)


def test_a_key_that_is_long_has_a_line_of_its_own():
    assert on_a_terminal(Entries([("min_rows_per_leaf = 10", "why")])).endswith(
        f"\nmin_rows_per_leaf = 10\n{'':13}why"
    )
