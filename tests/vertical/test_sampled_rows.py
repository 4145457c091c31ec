"""Gradients travel only of the rows that a tree is trained on, where the sample says nothing that its
receiver could not draw itself."""

import numpy as np
import pytest
from apart_sessions import Apart
from columns_apart import LAYOUTS, matched, pooled, scattered, train_pooled
from consortium import installed

from fedboost.holders.column_rows import ENCRYPTED, GRADIENTS, SAMPLE, GradientExchange
from fedboost.protocol.contracts import Send

SETTINGS = {
    "subsample": ("binary", {"subsample": 0.6}),
    "a fifth": ("binary", {"subsample": 0.2, "max_depth": 4}),
    "bootstrap": (
        "number",
        {"sampling_method": "bootstrap", "subsample": 0.5, "objective": "reg:squarederror"},
    ),
    "forest": ("binary", {"num_parallel_tree": 3, "subsample": 0.5, "learning_rate": 1.0}),
    "classes": (
        "classes",
        {"objective": "multi:softprob", "num_class": 3, "subsample": 0.5, "num_parallel_tree": 2},
    ),
    "held out": ("binary", {"validation_fraction": 0.3}),
    "held out, sampled": ("binary", {"validation_fraction": 0.3, "subsample": 0.5}),
    "by leaves": ("binary", {"grow_policy": "lossguide", "max_leaves": 7, "subsample": 0.5}),
    "alone at first": ("binary", {"alone_rounds": 1, "subsample": 0.5}),
    "floor": ("binary", {"min_rows_per_bin": 5, "subsample": 0.5}),
}
ONE_HOLDER = "two holders", "three holders"
PAIRS = [
    (setting, layout)
    for setting in SETTINGS
    for layout in (ONE_HOLDER if setting in ("alone at first", "floor") else (*ONE_HOLDER, "ragged blocks"))
]


def played(layout, table, **settings):
    """A session over scattered rows, its common rows, and what its label holders relayed to one party."""
    tables, common = scattered(LAYOUTS[layout], table, share=0.9)
    terms = matched(LAYOUTS[layout], **{"model": "whole", "min_common_rows": 30, **settings}).with_parties(
        list(tables)
    )
    with Relayed() as sent:
        apart = Apart(layout, terms=terms, tables=tables).play()
    assert apart.session.phase == "done", apart.error
    return apart, common, sent


class Relayed:
    """What label holders relay about gradients, in order."""

    def __enter__(self):
        self.sent, self.share = [], GradientExchange.share_sample
        self.send = GradientExchange.send
        for name, method in {"share_sample": self.share, "send": self.send}.items():
            setattr(GradientExchange, name, self._noting(method))
        return self.sent

    def __exit__(self, *_):
        GradientExchange.share_sample, GradientExchange.send = self.share, self.send

    def _noting(self, method):
        def noting(exchange, *arguments):
            steps, given = method(exchange, *arguments), None
            while True:
                try:
                    step = steps.send(given)
                except StopIteration as end:
                    return end.value
                if isinstance(step, Send):
                    self.sent.append(step)
                given = yield step

        return noting


@pytest.mark.parametrize(("setting", "layout"), PAIRS)
def test_the_model_is_that_of_pooled_rows(setting, layout):
    label, settings = SETTINGS[setting]
    apart, common, _ = played(layout, pooled(label=label), **settings)
    if setting in ("alone at first", "floor"):  # no model of pooled rows has these
        others, _, sent = played(layout, pooled(label=label), **settings, id_form="digits")
        assert (SAMPLE in {step.kind for step in sent}) == (setting == "floor")
        assert apart.session.booster == others.session.booster
        return
    own = {"columns": {"row_id": "id"}, "min_child_weight": 1, "rounds": 4, **settings}
    assert apart.session.booster == train_pooled(common, **own).model.booster


def test_only_sampled_rows_travel():
    _, common, sent = played("two holders", pooled(), subsample=0.2, rounds=6)
    masks = [step for step in sent if step.kind == SAMPLE]
    pairs = [step for step in sent if step.kind == GRADIENTS]
    assert len(masks) == len(pairs) == 6
    assert {len(step.content) for step in masks} == {-(-common.num_rows // 8)}
    for mask, gradients in zip(masks, pairs, strict=True):
        rows = int(np.unpackbits(np.frombuffer(mask.content, np.uint8)).sum())
        assert (len(gradients.content), gradients.about, mask.about) == (8 * rows, rows, rows)
        assert 0.08 < rows / common.num_rows < 0.35


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": "label_holder"},  # a party could test whose ids it lacks
        {"id_form": "digits"},  # the sample follows from how the label holder writes an id
        {"columns": {"validation": "held_out"}},  # who is held out is a column of the label holder
        {"subsample": 1.0},
    ],
)
def test_where_the_sample_would_tell_something_all_rows_travel(settings):
    _, _, sent = played("two holders", pooled(), **{"subsample": 0.5, **settings})
    assert {step.kind for step in sent} == {GRADIENTS}
    assert len({len(step.content) for step in sent}) == 1


@pytest.mark.parametrize("row_id", [None, "id"])
def test_rows_in_the_same_order(row_id):
    """Where rows have no ids, places are drawn; ids of the label holder's rows alone would be told."""
    columns = {} if row_id is None else {"row_id": row_id}
    settings = {
        "rows": "in_order",
        "subsample": 0.5,
        "columns": columns,
        "rounds": 4,
        "max_depth": 3,
        "max_bin": 16,
    }
    with Relayed() as sent:
        apart = Apart("two holders", table=pooled(120), **settings).play()
    assert apart.session.phase == "done"
    assert (SAMPLE in {step.kind for step in sent}) == (row_id is None)


@pytest.mark.slow
@pytest.mark.parametrize("party", ["bank", pytest.param("telco", marks=pytest.mark.long)])
@pytest.mark.parametrize("setting", ["forest", "floor"])
def test_a_party_that_dies_changes_nothing(party, setting):
    """The sample of a tree that has grown is relayed again, and its gradients when they are needed."""
    _, settings = SETTINGS[setting]
    whole, _, _ = played("two holders", pooled(), **settings)
    tables, _ = scattered(LAYOUTS["two holders"], pooled(), share=0.9)
    given = {"model": "whole", "min_common_rows": 30, "on_loss": "wait", **settings}
    terms = matched(LAYOUTS["two holders"], **given).with_parties(list(tables))
    for turn in range(3, whole.session.turn):
        apart = Apart("two holders", terms=terms, tables=tables).dying(party, turn).play()
        assert apart.session.booster == whole.session.booster
        assert len(apart.made[party]) == 2


@pytest.mark.slow
@pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier")
@pytest.mark.usefixtures("one_key")
@pytest.mark.parametrize("setting", ["subsample", "classes", "bootstrap", "floor"])
def test_encrypted_gradients(setting):
    label, settings = SETTINGS[setting]
    table = pooled(80, label=label)
    own = {"key_bits": 2048, "rounds": 2, "max_bin": 8, **settings}
    hidden, common, sent = played("two holders", table, protection="paillier", **own)
    kinds = {step.kind for step in sent}
    assert kinds == {SAMPLE, ENCRYPTED}
    plain, _, _ = played(
        "two holders", table, protection="plain", **{k: v for k, v in own.items() if k != "key_bits"}
    )
    assert hidden.session.booster == plain.session.booster
    trees = settings.get("num_parallel_tree", 1)
    for mask, rows in zip(sent[::2], sent[1::2], strict=True):
        number = int(np.unpackbits(np.frombuffer(mask.content, np.uint8)).sum())
        outputs = settings.get("num_class", 1)
        assert len(rows.content) == 512 * number * outputs
        assert number < trees * common.num_rows
