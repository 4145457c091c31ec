"""Results of sessions that train nothing, from an aggregator that sends anything: one error, or a text."""

import copy
import dataclasses
import io
import json
from contextlib import redirect_stdout, suppress

import numpy as np
import pytest
from raised import raised
from sites import rows, shared_out, terms

import fedboost as fb
from fedboost.cli.output import print_text
from fedboost.errors import PeerError
from fedboost.runtime.local.simulation import run_session
from fedboost.runtime.signed_model import signed_model_of
from fedboost.runtime.tasks import Description, Evaluation, Tuning, evaluation_terms, terms_to_tune
from fedboost.terms.tasks import terms_to_describe
from fedboost.views.as_text import text
from fedboost.views.results import document

COLUMNS = {"label": "ward", "numeric": ["age", "dose"], "classes": ["a", "b", "c"]}
NOISY = {"ranges": {"age": [0, 100], "dose": [-5, 5]}, "label": "y", "numeric": ["age", "dose"]}
BAD = (
    *(None, True, -1, 0, 10**400, 1e999, -1e999, float("nan"), 2.5, "", "\x1b[2J\n", [], {}, [None]),
    *({"\x1b[A": 3}, [1, 2, 3], ["x"], {"rows": 1}),
)


def described(summary, model):
    known = Description.from_model(dataclasses.replace(model, summary=summary), {})
    assert all(known.advice)
    return text(document(known))


def tuned(summary, model):
    found = Tuning.from_model(dataclasses.replace(model, summary=summary), {})
    assert found.terms.session.program == "boosting"
    return text(document(found))


def evaluated(summary, model):
    return text(document(Evaluation.from_model(dataclasses.replace(model, summary=summary), {})))


def sessions():
    """What reads a result, and a model that has one."""
    parts = shared_out(3, rows(400))
    labels = {"objective": "reg:squarederror"}
    trained = fb.simulate(terms(), parts).model
    classes = fb.simulate(terms(columns=COLUMNS, objective="multi:softprob"), parts).model
    noisy = {"noise": {"epsilon": 1.0, "delta": 1e-6}, "protection": "masked"}
    for read, agreed in (
        (described, terms_to_describe(terms())),
        (described, terms_to_describe(terms(**labels))),
        (described, terms_to_describe(terms(columns=NOISY, **noisy))),
        (tuned, terms_to_tune(terms(), None, 3)),
        (evaluated, evaluation_terms(trained, by=["ward"], by_site=True)),
        (evaluated, evaluation_terms(classes)),
    ):
        yield read, signed_model_of(run_session(agreed, parts)[0])


def places(value, path=()):
    """The paths of all values in a result."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def spoiled(summary, path, draw):
    """The result with something else at a place, without it, or with a name more."""
    out = copy.deepcopy(summary)
    if not path:
        return BAD[draw.integers(len(BAD))]
    *above, last = path
    at = out
    for key in above:
        at = at[key]
    kind = draw.integers(4)
    if kind == 0:
        del at[last]
    elif kind == 1 and isinstance(at, dict):
        at["\x1b[31m"] = at.pop(last)
    else:
        at[last] = BAD[draw.integers(len(BAD))]
    return out


@pytest.mark.slow
def test_nothing_but_a_result_is_read():
    draw = np.random.default_rng(1)
    for read, model in sessions():
        summary = json.loads(json.dumps(model.summary))
        assert [*read(summary, model)]
        survived = 0
        every = [*places(summary)]
        for place in draw.permutation(len(every))[:150]:
            other = spoiled(summary, every[place], draw)
            out = io.StringIO()
            with redirect_stdout(out), suppress(PeerError):
                print_text(read(other, model))
                survived += 1
            assert "\x1b" not in out.getvalue()
        assert survived < 60


def test_a_description_whose_noise_leaves_no_row_can_be_read():
    noisy = {"noise": {"epsilon": 1.0, "delta": 1e-6}, "protection": "masked"}
    agreed = terms_to_describe(terms(columns=NOISY, **noisy))
    model = signed_model_of(run_session(agreed, shared_out(3))[0])
    summary = json.loads(json.dumps(model.summary)) | {"rows": 0}
    summary["columns"][0]["missing"] = 40
    assert [*described(summary, model)]


@pytest.mark.parametrize("summary", [{}, {"rows": 3}, {"trials": [{}], "metric": "logloss", "best": 0}])
def test_what_is_another_result_is_refused(summary):
    model = fb.simulate(terms(), shared_out(2)).model
    for read in (described, tuned, evaluated):
        with raised(PeerError, "result-invalid"):
            read(summary, model)


def read(kind, model, **changed):
    """The result of a model whose summary has other values, or PeerError."""
    return kind.from_model(
        dataclasses.replace(model, summary=json.loads(json.dumps(model.summary)) | changed), {}
    )


@pytest.mark.parametrize(
    "label",
    [
        {"name": "y", "levels": {"0": 10, "1": None}},
        {"name": "y", "levels": {"0": 10, "1": 20}, "constant": True},
        {"name": "y", "levels": {"0": 10, "1": 20}, "quantiles": {"0.5": [0, 1]}},
    ],
)
def test_a_label_of_classes_has_counts_alone(label):
    model = signed_model_of(run_session(terms_to_describe(terms()), shared_out(2))[0])
    assert read(Description, model, label={"name": "y", "levels": {"0": 10, "1": 20}})
    with pytest.raises(PeerError):
        read(Description, model, label=label)


@pytest.mark.parametrize(
    "more",
    [{"levels": {"x": 0}}, {"quantiles": {"0.5": [0, 1]}}, {"constant": True}],
    ids=lambda more: next(iter(more)),
)
def test_a_label_that_was_not_counted_has_its_name_alone(more):
    noisy = {"noise": {"epsilon": 1.0, "delta": 1e-6}, "protection": "masked"}
    agreed = terms_to_describe(
        terms(columns=NOISY | {"label_range": [0, 1]}, objective="reg:squarederror", **noisy)
    )
    model = signed_model_of(run_session(agreed, shared_out(3))[0])
    label = json.loads(json.dumps(model.summary))["label"]
    assert [*text(document(read(Description, model, label=label)))]
    with pytest.raises(PeerError):
        read(Description, model, label=label | more)


def test_a_column_is_constant_or_not():
    model = signed_model_of(run_session(terms_to_describe(terms()), shared_out(2))[0])
    columns = json.loads(json.dumps(model.summary))["columns"]
    columns[0]["constant"] = "no"
    with pytest.raises(PeerError):
        read(Description, model, columns=columns)


def test_figures_of_any_size_can_be_drawn():
    parts = shared_out(3, rows(400))
    trained = fb.simulate(terms(), parts).model
    agreed = evaluation_terms(trained, by_site=True)
    model = signed_model_of(run_session(agreed, parts)[0])
    known = json.loads(json.dumps(model.summary))
    bins = [each | {"rows": 2**40, "mean_prediction": 9e299} for each in known["bins"]]
    sites = known["sites"]
    for each in sites["sets"].values():
        each["metrics"] = dict.fromkeys(each["metrics"], 4e-323)
    sites["gaps"] = dict.fromkeys(known["metrics"], 1.0)
    result = read(Evaluation, model, bins=bins, sites=sites)
    assert [*text(document(result), full=True)]
    assert "3.9525e-323" in result.report()


def test_a_figure_has_its_own_uncertainty_in_whatever_order_they_come():
    parts = shared_out(3, rows(400))
    trained = fb.simulate(terms(eval_metric=["logloss", "error"]), parts).model
    model = signed_model_of(run_session(evaluation_terms(trained), parts)[0])
    known = read(Evaluation, model)
    turned = read(Evaluation, model, resolution=dict(reversed(known.resolution.items())))
    assert len({*known.resolution.values()}) == 2
    assert document(turned).blocks[0] == document(known).blocks[0]
