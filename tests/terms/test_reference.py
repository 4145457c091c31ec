"""docs/terms.md is what the fields of the terms say, and says something of each key."""

from pathlib import Path
from runpy import run_path

from fedboost.terms.columns import Schema
from fedboost.terms.hiding import Noise
from fedboost.terms.terms import Terms

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_fresh():
    made = run_path(str(DOCS / "make" / "terms.py"))["page"]()
    assert (DOCS / "terms.md").read_text() == made, "run make reference"


def test_every_key_is_described_in_sentences():
    for model in (Terms, Schema, Noise):
        for key, field in model.file_keys().items():
            assert field.description, key
            assert field.description[0].isupper() or field.description[0] == "`", key
            assert field.description.endswith("."), key


def test_every_key_has_its_place_in_the_order_of_the_digest():
    groups = Terms.groups()
    keys = [key for key in Terms.model_fields if key not in groups]
    keys += [key for group in groups.values() for key in group.file_keys()]
    assert sorted(keys) == sorted(Terms.file_keys())
    listed = (*Terms.ORDER, *Terms.OMITTED)
    assert tuple(Terms.file_keys())[: len(listed)] == listed
