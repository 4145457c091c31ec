"""Models, results and terms in notebooks: small tables, whatever names they hold."""

from html.parser import HTMLParser

import pytest
from sites import rows, shared_out, terms

import fedboost as fb

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egnp.exe",
    "</td></table><h1>",
    "&lt;b&gt;",
]


TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """The tags, attributes and texts of a page; what is not closed in order is an error."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), set(), [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {*attrs}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_model_a_result_and_terms_are_tables():
    tables = shared_out(3)
    agreed = fb.Terms.read(terms([*tables], protection="masked", max_depth=2).model_dump())
    result = fb.simulate(agreed, tables)
    of_terms, of_model, of_result = (Tags(thing._repr_html_()) for thing in (agreed, result.model, result))
    assert {"Terms", "columns.label", "y", "max_depth", "2", "north, south, east"} <= {*of_terms.texts}
    assert "learning_rate" not in of_terms.texts
    assert {"Model", "3 in 3 rounds", "masked, signed by north, south, east", "age"} <= {*of_model.texts}
    assert {"Result", "Bytes", "north", "south", "east"} <= {*of_result.texts}
    for page in (of_terms, of_model, of_result):
        assert page.tags <= TAGS
        # No colours: those of a light and of a dark notebook hold.
        assert {key for key, _ in page.attributes} <= {"class", "scope"}


def test_a_model_from_a_file_says_the_same(tmp_path):
    model = fb.simulate(terms(rounds=2), [rows()]).model
    model.save(tmp_path / "m.json")
    assert fb.Model.load(tmp_path / "m.json")._repr_html_() == model._repr_html_()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_markup(name):
    columns = {"label": name, "numeric": ["x"], "categorical": {"w": [name, "b"]}, "positive": name}
    agreed = fb.Terms(columns=columns, rounds=1, protection="plain")
    table = {"x": [*range(20)] * 2, "w": [name, "b"] * 20, name: [name, "no", "no", name] * 10}
    result = fb.simulate(agreed, {name if name.isprintable() else "north": table})
    for thing in (agreed, result, result.model):
        page = Tags(thing._repr_html_())
        assert page.tags <= TAGS
        assert {key for key, _ in page.attributes} <= {"class", "scope"}
        shown = name.replace("\u202e", "\\u202e")
        assert thing is not agreed or shown in page.texts
        assert "\u202e" not in thing._repr_html_()


def test_tables_stay_small():
    names = [f"feature {number:05d}" for number in range(5000)]
    page = fb.Terms(columns={"label": "y" * 250, "numeric": names}, protection="plain")._repr_html_()
    assert len(page) < 5000
    assert "5000: feature 00000, " in page
