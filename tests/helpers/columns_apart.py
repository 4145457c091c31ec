"""Rows whose columns are held apart: pooled tables, layouts of holders, and terms for them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import fedboost as fb

NUMERIC, LEVELS = ("age", "income", "minutes", "calls", "visits"), ("red", "green", "blue")
ROWS, FEWEST = 300, 100


def pooled(rows=ROWS, seed=0, label="binary"):
    """One table with all columns: five numeric ones, one categorical, labels, ids, validation rows."""
    draw = np.random.default_rng(seed)
    columns = {name: draw.normal(size=rows).astype(np.float32) for name in NUMERIC}
    for name in ("income", "calls"):
        columns[name][draw.random(rows) < 0.15] = np.nan
    columns["colour"] = draw.choice(LEVELS, rows)
    score = columns["age"] + np.nan_to_num(columns["calls"]) * columns["visits"]
    score += (columns["colour"] == "red") + 0.3 * draw.normal(size=rows)
    labels = {
        "binary": (score > 0).astype(np.int64),
        "number": score.astype(np.float32),
        "classes": np.digitize(score, [-0.5, 0.5]),
        "count": draw.poisson(np.exp(np.clip(score, -2, 2))),
    }
    columns |= {"y": labels[label], "id": np.arange(rows), "held_out": (np.arange(rows) % 5 == 0).astype(int)}
    columns["margin"] = np.linspace(-0.5, 0.5, rows, dtype=np.float32)
    return pa.table(columns)


@dataclass(frozen=True)
class Layout:
    """Who holds what. blocks: for each its label holder, and the columns of its other parties; cuts: the
    share of the rows that end with each block."""

    blocks: tuple[tuple[str, dict[str, tuple[str, ...]]], ...]
    cuts: tuple[float, ...] = (1.0,)

    @property
    def held(self):
        return {party: list(names) for _, others in self.blocks for party, names in others.items()}

    def settings(self):
        """The keys of terms."""
        if len(self.blocks) == 1:
            return {"label_holder": self.blocks[0][0]}
        return {
            "blocks": [
                {"parties": [holder, *others], "label_holder": holder} for holder, others in self.blocks
            ]
        }

    def tables(self, table):
        """Each party's own columns and rows."""
        out, begin = {}, 0
        features = [*NUMERIC, "colour"]
        for (holder, others), cut in zip(self.blocks, self.cuts, strict=True):
            end = round(cut * table.num_rows)
            part, begin = table.slice(begin, end - begin), end
            elsewhere = {name for names in others.values() for name in names}
            beside = [name for name in table.column_names if name not in features]
            out[holder] = part.select([*beside, *(name for name in features if name not in elsewhere)])
            out |= {party: part.select(names) for party, names in others.items()}
        return out


LAYOUTS = {
    "two holders": Layout((("bank", {"telco": ("minutes", "calls", "colour")}),)),
    "three holders": Layout((("bank", {"telco": ("minutes", "calls"), "shop": ("visits", "colour")}),)),
    "one a column": Layout(
        (
            (
                "bank",
                {f"{name}_holder": (name,) for name in (*NUMERIC, "colour")},
            ),
        )
    ),
    "blocks": Layout(
        (
            ("bank", {"telco": ("minutes", "calls", "colour")}),
            ("bank2", {"telco2": ("minutes", "calls", "colour")}),
        ),
        (0.5, 1.0),
    ),
    "ragged blocks": Layout(
        (
            ("bank", {"telco": ("calls", "colour")}),
            ("bank2", {"telco2": ("age", "calls"), "shop2": ("colour", "visits")}),
        ),
        (0.3, 1.0),
    ),
}


def terms_of(layout=None, **settings):
    """Terms for these columns; without a layout those of one party with all of them."""
    columns = {"label": "y", "numeric": list(NUMERIC), "categorical": {"colour": list(LEVELS)}}
    columns |= settings.pop("columns", {})
    if layout is not None:
        columns["held"] = layout.held
        settings = {"rows": "in_order"} | settings | layout.settings()
    settings = {"rounds": 4, "max_depth": 3, "max_bin": 16, "protection": "plain"} | settings
    return fb.Terms(columns=columns, **settings)


def train_pooled(table, **settings):
    return fb.simulate(terms_of(**settings), {"pooled": table})


def train_apart(layout, table, seed=0, **settings):
    return fb.simulate(terms_of(layout, **settings), layout.tables(table), seed=seed)


def matched(layout, **settings):
    settings["columns"] = {"row_id": "id"} | settings.get("columns", {})
    return terms_of(layout, **{"rows": "common", "min_common_rows": FEWEST} | settings)


def scattered(layout, table, seed=0, share=0.85, ids=None):
    """The table of each party, with a share of the rows of its block, in an order of its own; and the rows
    that all parties of a block have. ids: written in another way at each party."""
    draw, tables, common = np.random.default_rng(seed), {}, np.zeros(table.num_rows, np.bool_)
    begin = 0
    for (holder, others), cut in zip(layout.blocks, layout.cuts, strict=True):
        end = round(cut * table.num_rows)
        everywhere = np.ones(end - begin, np.bool_)
        own = layout.tables(table)
        for number, party in enumerate([holder, *others]):
            kept = draw.random(end - begin) < share
            everywhere &= kept
            rows = draw.permutation(np.flatnonzero(kept))
            part = own[party]
            if "id" not in part.column_names:
                part = part.append_column("id", table.slice(begin, end - begin)["id"])
            if ids is not None:
                written = pa.array([ids[number % len(ids)](i) for i in part["id"].to_pylist()])
                part = part.set_column(part.column_names.index("id"), "id", written)
            tables[party] = part.take(rows)
        common[begin:end], begin = everywhere, end
    return tables, table.filter(pa.array(common))


def left_joined(layout, table, tables):
    """All rows of the label holder, with null in the columns of a party whose table does not have the id.
    table: that the tables were scattered from, whose row i has the id i."""
    ((holder, others),) = layout.blocks
    ids = tables[holder]["id"].to_numpy()
    out = table.take(ids)
    for party, names in others.items():
        known = np.isin(ids, tables[party]["id"].to_numpy())
        for name in names:
            own = pc.if_else(pa.array(known), out[name], None)
            out = out.set_column(out.column_names.index(name), name, own)
    return out


def of_people(layout, people=150, rows=400, share=0.85, label="binary"):
    """The table of each party where the label holder has some rows of most people, and the others each person
    once, in an order of their own. And with the columns of all parties the rows of those whom all have, and
    all rows of the label holder."""
    ((holder, others),) = layout.blocks
    draw, whole, persons = np.random.default_rng(5), pooled(rows, label=label), pooled(people, seed=1)
    who, known = draw.integers(0, people, rows), {}
    whole = _with(whole, "id", pa.array(who))
    tables, features = {}, [name for names in others.values() for name in names]
    for name in features:
        whole = _with(whole, name, persons[name].take(who))
    tables[holder] = whole.drop_columns(features)
    left = whole
    for party, names in others.items():
        kept = draw.permutation(people)[: round(share * people)]
        tables[party] = persons.select(["id", *names]).take(kept)
        known[party] = np.isin(who, kept)
        for name in names:
            left = _with(left, name, pc.if_else(pa.array(known[party]), left[name], None))
    return tables, whole.filter(pa.array(np.all([*known.values()], axis=0))), left


def _with(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)
