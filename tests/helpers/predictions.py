"""Sessions in which parties with different columns predict: models, tables, and what the whole model says."""

from dataclasses import replace
from functools import cache

import numpy as np

import fedboost as fb
from fedboost.boosting.programs import initialisation
from fedboost.boosting.queries.base import view_of
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Relayed
from fedboost.runtime.data.shard import to_shard
from tests.helpers.apart_sessions import Apart
from tests.helpers.columns_apart import LAYOUTS, NUMERIC, Layout, matched, pooled, scattered, terms_of

ROWS, FEWEST = 120, 20
MODEL = "5" * 64
SETTINGS = {
    "logistic": ("binary", {}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "forest": ("binary", {"num_parallel_tree": 2, "subsample": 0.7}),
    "base margins": ("binary", {"columns": {"base_margin": "margin"}}),
    "symmetric": ("number", {"objective": "reg:squarederror", "grow_policy": "symmetric", "max_depth": 4}),
    "lossguide": ("number", {"objective": "reg:squarederror", "grow_policy": "lossguide", "max_leaves": 11}),
    "stump": ("binary", {"rounds": 1, "max_depth": 1}),
}
OTHERS = {
    "no own columns": Layout(
        (("bank", {"telco": ("age", "income", "minutes", "colour"), "shop": ("calls", "visits")}),)
    ),
    **{name: LAYOUTS[name] for name in ("two holders", "three holders", "one a column")},
}


@cache
def trained(setting):
    """The whole model."""
    label, settings = SETTINGS[setting]
    return fb.simulate(terms_of(**settings), {"pooled": pooled(ROWS, label=label)}).model.booster


def everyone():
    """Rows to predict, by their id."""
    return pooled(ROWS, seed=7)


def tables_of(layout, share=0.85, **settings):
    """The table of each party, of other rows than those that the model grew on, without labels."""
    tables, _ = scattered(OTHERS[layout], everyone(), share=share, **settings)
    return {**tables, "bank": tables["bank"].drop_columns(["y", "held_out"])}


def terms_for(layout, setting, tables, **changes):
    settings = {"min_common_rows": FEWEST, **SETTINGS[setting][1]}
    terms = matched(OTHERS[layout], **settings).with_parties(list(tables))
    return terms.changed(**{"predict_with": MODEL, "predict_rows": tables["bank"].num_rows, **changes})


def told_of(model, terms, party):
    """A whole model as a party was told it while it grew: without leaf values and base score but at the label
    holder, and of the splits of others who holds them."""
    view = view_of(terms, party)
    score = model.base_score if view.has_labels else UNTOLD_SCORE
    return replace(model, base_score=score, trees=tuple(map(view.tree, model.trees)))


def models_of(terms, setting):
    return {party: told_of(trained(setting), terms, party) for party in terms.parties}


def joined(layout, tables, ids=int):
    """The columns of the label holder's rows, where each feature holder has the ids that are in its table;
    their base margins; and who has which. ids: reads an id."""
    columns = to_shard(everyone(), terms_of(columns={"base_margin": "margin"}), "pooled")
    rows = [ids(i) for i in tables["bank"]["id"].to_pylist()]
    features = np.stack(columns.columns, axis=1)[rows]
    numbers = {name: number for number, name in enumerate((*NUMERIC, "colour"))}
    known = []
    for party, names in OTHERS[layout].held.items():
        own = {ids(i) for i in tables[party]["id"].to_pylist()}
        known.append([row in own for row in rows])
        for name in names:
            features[~np.array(known[-1]), numbers[name]] = np.nan
    return features, columns.base_margin[rows], np.array(known)


def due(layout, setting, tables, ids=int):
    """What the whole model says of these rows: margins, and who has which."""
    features, base, known = joined(layout, tables, ids)
    return trained(setting).margins(features, base if setting == "base margins" else None), known


class Predicting(Apart):
    """A session message by message, see `Apart`. models: of parties, in the place of what they were told;
    changes: of the terms. `relayed` has what the sites noted of relays."""

    def __init__(
        self, layout="three holders", setting="logistic", tables=None, models=None, changes=None, **apart
    ):
        tables = tables_of(layout) if tables is None else tables
        terms = terms_for(layout, setting, tables, **(changes or {}))
        models = models_of(terms, setting) | (models or {})
        super().__init__(
            terms=terms, models=models, tables=tables, **{"program": initialisation.predict, **apart}
        )
        self.relayed = []
        self.sites = {name: replace(site, record=self.note) for name, site in self.sites.items()}
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}

    def note(self, record):
        if isinstance(record, Relayed):
            self.relayed.append(record)

    @property
    def prediction(self):
        """That of the last process of the label holder that has one."""
        return [holder.prediction for holder in self.made["bank"] if holder.prediction is not None][-1]
