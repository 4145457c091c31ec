"""Objectives that packages offer: found, trained with, written for XGBoost; and what is said of those that
are none. The package is the one of docs/objectives.md."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xgboost
from sites import fedboost

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.sdk import check_objective
from fedboost.views.approval import summary

PAGE = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text()
PACKAGE, TERMS = (tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
CODE, CHECK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COLUMNS = {"label": "y", "numeric": ["a", "b"]}
NAME = "acme:expectile"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """What installs a package of objectives: its code, its version, its entry points, its name."""
    before = {*sys.modules}

    def installed(code=CODE, version=PACKAGE["project"]["version"], points=None, name=None):
        (points_of_page,) = PACKAGE["project"]["entry-points"].values()
        name, points = name or PACKAGE["project"]["name"], points or points_of_page
        folder = tmp_path / f"{name}-{version}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{key} = {value}" for key, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[fedboost.objectives]", *lines]) + "\n")
        (folder / "acme.py").write_text(code)
        sys.modules.pop("acme", None)
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield installed
    for module in {*sys.modules} - before:
        if module == "acme":
            del sys.modules[module]


def tables():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300))
    rows = {"a": a, "b": b, "y": 20 + 5 * a + rng.normal(size=300)}
    return rows, {f"p{i}": {name: of[i::3] for name, of in rows.items()} for i in range(3)}


def terms(**settings):
    return fb.Terms.read({"columns": COLUMNS, "rounds": 5, "max_depth": 3, **TERMS, **settings})


def refusal(**settings):
    with pytest.raises(ConfigError) as caught:
        terms(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_the_federated_model_is_the_pooled_one(install, protection):
    install()
    rows, parts = tables()
    agreed = terms(protection=protection)
    result = fb.simulate(agreed, parts)
    pooled = fb.simulate(agreed.changed(protection="plain"), {"all": rows}).model
    assert result.model.booster == pooled.booster
    plain = fb.simulate(terms(protection="plain", objective="reg:squarederror", objective_params={}), parts)
    off = [np.mean(one.model.predict(rows) > rows["y"]) for one in (result, plain)]
    assert off[0] < off[1]  # too high costs three times as much
    assert list(result.history[-1])[:2] == ["round", "rmse"]


def test_the_regressor_takes_it(install):
    install()
    rows, _ = tables()
    X, trained = np.column_stack([rows["a"], rows["b"]]), []
    for over in (1.0, 3.0):
        one = fb.FederatedRegressor(n_estimators=5, objective=NAME, objective_params={"over": over})
        trained.append(one.fit(X, rows["y"]).predict(X).mean())
    assert trained[1] < trained[0]


def test_the_model_file_is_one_of_xgboosts(install, tmp_path):
    install()
    rows, parts = tables()
    model = fb.simulate(terms(), parts).model
    model.save(tmp_path / "m.json")
    again = fb.Model.load(tmp_path / "m.json")
    assert again.booster == model.booster
    assert again.booster.loss.over == 3.0
    assert again.to_bytes() == model.to_bytes()
    theirs = xgboost.Booster(model_file=tmp_path / "m.json")
    X = np.column_stack([rows["a"], rows["b"]]).astype(np.float32)
    found = theirs.predict(xgboost.DMatrix(X, feature_names=["a", "b"]))
    assert np.abs(found - model.predict(X)).max() <= 1e-6 * np.abs(found).max()
    assert Booster.from_xgboost((tmp_path / "m.json").read_text())[0].objective == "reg:squarederror"


def test_the_version_of_the_package_is_part_of_the_terms(install, monkeypatch):
    folder = install()
    agreed = terms()
    assert agreed.objective.package == "acme-objectives==1.2"
    assert agreed.digest == terms(objective_package="acme-objectives==1.2").digest
    assert agreed.digest == terms(objective_params={"over": 3}).digest
    assert 'objective_params {"over": 3.0}' in " ".join(summary(agreed).split())
    assert agreed.digest != terms(objective_params={"over": 2.5}).digest
    sys.path.remove(str(folder))
    install(version="1.3")
    assert terms().digest != agreed.digest
    with pytest.raises(ConfigError) as caught:
        fb.Terms.from_canonical(agreed.canonical())
    assert str(caught.value) == (
        "terms: objective acme:expectile is from 'acme-objectives==1.2' in the terms, but from "
        "acme-objectives==1.3 on this machine: install the package in the version that the terms name"
    )


def test_a_name_nobody_offers(install):
    assert refusal().startswith(
        "terms: objective: unknown objective 'acme:expectile'; known: binary:logistic,"
    )
    assert refusal().endswith("; from installed packages (entry points of group fedboost.objectives): none")
    install()
    said = refusal(objective="acme:expectil")
    assert said.startswith(
        "terms: objective: unknown objective 'acme:expectil' (did you mean acme:expectile?)"
    )
    assert said.endswith("(entry points of group fedboost.objectives): acme:expectile")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"objective_params": {"ovr": 3.0}},
            "objective acme:expectile has no parameter 'ovr'; valid parameters: over",
        ),
        (
            {"objective_params": {"over": "x"}},
            "objective acme:expectile: parameter over must be a number, not 'x'",
        ),
        (
            {"eval_metric": "auc"},
            "eval_metric auc does not apply to objective acme:expectile; use one of: rmse, mae, mphe",
        ),
        ({"columns": {**COLUMNS, "positive": "yes"}}, "columns.positive needs objective binary:logistic"),
        (
            {"columns": {**COLUMNS, "group": "q"}},
            "columns.group needs objective rank:ndcg or rank:pairwise, not acme:expectile",
        ),
        ({"huber_slope": 2.0}, "huber_slope is for reg:pseudohubererror, not for acme:expectile: remove it"),
        (
            {"objective": "reg:gamma"},
            "objective_params and objective_package are only for objectives of packages, not for reg:gamma",
        ),
    ],
)
def test_what_does_not_go_with_it(install, settings, says):
    install()
    assert refusal(**settings).startswith(f"terms: {says}")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "import numpy as np",
            "import numpi",
            "from acme-objectives==1.2 cannot be loaded: ModuleNotFoundError",
        ),
        (
            "@dataclass(frozen=True)",
            "",
            "from acme-objectives==1.2 is not a valid objective: it is not a dataclass",
        ),
        (
            "    def gradients(",
            "    def gradiants(",
            "is not a valid objective: it does not define gradients",
        ),
        ('"acme:expectile"', '"acme:other"', "is not a valid objective: its name is 'acme:other'"),
        (
            "    metrics =",
            "    outputs = 2\n    metrics =",
            "is not a valid objective: it has several outputs",
        ),
        (
            "    xgboost_equivalent = SquaredError()\n",
            "",
            "its xgboost_equivalent is 'acme:expectile', which is not one of binary:logistic",
        ),
        (
            "xgboost_equivalent = SquaredError()",
            "xgboost_equivalent = __import__('fedboost').gbdt.objectives.built_in.RankNdcg()",
            "its xgboost_equivalent is 'rank:ndcg', which is not one of binary:logistic",
        ),
        (
            "    def gradients(",
            "    def predict(self, margin):\n        return margin + 1\n\n    def gradients(",
            "differ from those of reg:squarederror, its xgboost_equivalent",
        ),
        ("(Objective)", "", "is not a valid objective: it is not derived from Objective"),
        ('    metrics = ("rmse",)\n', "", "is not a valid objective: AttributeError: "),
        ("over: float = 2.0", "over: float = 2.0\n    def __post_init__(self): 1 / 0", ": ZeroDivisionError"),
    ],
)
def test_what_is_no_objective(install, old, new, says):
    assert CODE.count(old) == 1 or old == "import numpy as np"
    install(CODE.replace(old, new))
    assert says in refusal()


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ("return weight / 0 * (margin - label), hessian", "returned invalid gradients"),
        ("return hessian * (margin - label), -hessian", "returned invalid gradients"),
        ("return hessian[1:], hessian[1:]", "returned invalid gradients"),
        ("raise KeyError('a value of a row')", "failed on this party's rows"),
    ],
)
def test_gradients_that_are_none_end_the_session_with_a_sentence(install, new, says):
    install(CODE.replace("return hessian * (margin - label), hessian", new))
    _, parts = tables()
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(fb.FedboostError) as caught:
        fb.simulate(terms(), parts)
    assert f"objective acme:expectile {says}" in str(caught.value)
    assert "a value of a row" not in str(caught.value)


def test_two_packages_of_one_name(install):
    install()
    install(name="acme-too")
    assert (
        "is offered by several installed packages: acme-objectives, acme-too; uninstall all but one"
        in refusal()
    )


def test_a_command_without_the_package_says_so_in_a_line(install, tmp_path, monkeypatch):
    folder = install()
    _, parts = tables()
    fb.simulate(terms(), parts).model.save(tmp_path / "m.json")
    sys.path.remove(str(folder))
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    end = fedboost("predict", str(tmp_path / "m.json"), str(tmp_path / "rows.csv"))
    assert end.code == 2
    assert "unknown objective 'acme:expectile'" in end.err
    assert end.err.count("\n") == 1


@pytest.mark.slow
def test_packages_are_looked_for_only_where_a_name_is_not_built_in():
    code = "import fedboost as fb; import fedboost.gbdt.objectives.registry as one; one._offered = None;"
    code += "fb.Terms.read({'columns': {'label': 'y', 'numeric': ['x']}, 'objective': 'reg:gamma'})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_check_for_a_packages_own_tests(install):
    place = {}
    exec(CODE + CHECK, place)
    kind, label = place["Expectile"], np.linspace(-9, 9, 100).astype(np.float32)

    def broken(gradients, bounds=None):
        return type("Broken", (kind,), {"gradients": gradients, "bounds": bounds})()

    of = kind.gradients
    for loss, says in (
        (
            broken(lambda s, m, y, w: (m.astype(np.float32), w)),
            "the gradient is float32 [100], not float64 [100]",
        ),
        (broken(lambda s, m, y, w: (w * np.log(m.clip(0)), w.astype(float))), "of row 0 is not finite"),
        (broken(lambda s, m, y, w: (w * (m - y.mean()), w * m.cumsum())), "depends on other rows"),
        (
            broken(lambda s, m, y, w: (m - y, w.astype(float))),
            "the gradient is not proportional to the weight",
        ),
        (broken(lambda s, m, y, w: (w * (m - y), w * m)), "the hessian of row 0 is negative"),
        (broken(of, (3, 2)), "a gradient has magnitude 10, above its bound 2**3"),
    ):
        with np.errstate(divide="ignore"), pytest.raises(ConfigError) as caught:
            check_objective(loss, label)
        assert says in str(caught.value)


def test_a_model_of_an_installed_objective_is_continued(install, tmp_path):
    install()
    _, parties = tables()
    whole = fb.simulate(terms(), parties).model
    fb.simulate(terms(rounds=2), parties).model.save(tmp_path / "first.json")
    for first in (tmp_path / "first.json", fb.Model.load(tmp_path / "first.json")):
        model = fb.simulate(terms(rounds=3, xgb_model=first), parties).model
        assert model.fingerprint == whole.fingerprint
    assert fb.Model.from_bytes(model.to_bytes()).booster.loss == model.terms.objective.loss
    with pytest.raises(
        ConfigError, match="its objective is reg:squarederror, but the terms have binary:logistic"
    ):
        terms(objective="binary:logistic", objective_params={}, xgb_model=tmp_path / "first.json")
