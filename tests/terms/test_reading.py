"""Terms that are refused: one line that names the key."""

import pytest
from all_terms import BASE, CLASSES, COLUMNS, RANKING, REGRESSION, terms, with_columns
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import ConfigError
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        # unknown keys name the nearest known one
        ({"max_dept": 3}, "unknown key 'max_dept' (did you mean max_depth?)"),
        ({"eta": 0.1}, "unknown key 'eta' (did you mean learning_rate?)"),
        ({"num_boost_round": 10}, "unknown key 'num_boost_round' (did you mean rounds?)"),
        ({"lambda": 1}, "unknown key 'lambda' (did you mean reg_lambda?)"),
        ({"metric": "auc"}, "unknown key 'metric' (did you mean eval_metric?)"),
        ({"xyzzy": 1}, "unknown key 'xyzzy'"),
        (
            {"columns": {**COLUMNS, "numerics": ["a"]}},
            "unknown key 'columns.numerics' (did you mean numeric?)",
        ),
        ({"columns": {**COLUMNS, "target": "y"}}, "unknown key 'columns.target' (did you mean label?)"),
        ({"columns": {**COLUMNS, "max_dept": 1}}, "unknown key 'columns.max_dept'"),
        (
            {"columns": {**COLUMNS, "id_form": "digits"}},
            "unknown key 'columns.id_form': it belongs at the top of the file, above all tables",
        ),
        # missing keys, wrong kinds, out of range
        ({"columns": {"numeric": ["a"]}}, "key 'columns.label' is missing"),
        ({"columns": 5}, "columns: "),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1, got 0"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"max_depth": 17}, "max_depth: input should be less than or equal to 16, got 17"),
        ({"rounds": True}, "rounds: expected a number, got True"),
        ({"max_depth": "6"}, "max_depth: expected a number, got '6'"),
        ({"max_delta_step": "1.5"}, "max_delta_step: expected a number, got '1.5'"),
        ({"parties": "a"}, "parties: expected a list in brackets, got 'a'"),
        ({"monotone_constraints": "(1,0)"}, "monotone_constraints: expected a table, { key = value }, got"),
        ({"label": "y"}, "unknown key 'label': it belongs under [columns]"),
        ({"learning_rate": 0}, "learning_rate: input should be greater than 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: input should be a finite number, got nan"),
        ({"reg_lambda": -1}, "reg_lambda: "),
        ({"reg_alpha": float("inf")}, "reg_alpha: input should be a finite number, got inf"),
        ({"max_bin": 257}, "max_bin: "),
        ({"parties": ["a", "b", "c\nd"]}, "is not a valid party name"),
        ({"parties": ["a", "b", "c" * 65]}, "is not a valid party name"),
        ({"parties": ["a", "b"]}, "protection masked needs 3 parties, but the terms name only 2"),
        ({"parties": ["a", "b"]}, "add parties, or set allow_two_parties = true, which hides only from the"),
        (
            {"parties": ["a"], "allow_two_parties": True},
            "protection masked needs 2 parties, but the terms name only 1; add parties, or set protection = "
            '"plain"',
        ),
        ({"colluding": 2}, "if 2 of 3 parties collude"),
        ({"max_bin": 1}, "max_bin: "),
        ({"gradient_bits": 25}, "gradient_bits: "),
        ({"parties": ["a", ""]}, "parties: '' is not a valid"),
        ({"parties": ["a", "b", "a"]}, "parties: a party is named more than once"),
        # names that are not known
        ({"objective": "binary:logistics"}, "objective: unknown objective 'binary:logistics' (did you mean "),
        (
            {"eval_metric": "aucc"},
            "unknown eval_metric 'aucc' (did you mean auc?); "
            "known: logloss, error, auc, aucpr, ks, ece, error@t",
        ),
        # combinations that cannot be trained
        (
            {"columns": {**COLUMNS, "base_margin": "m"}, "objective": "multi:softprob", "num_class": 3},
            "columns.base_margin has only one number per row, but multi:softprob needs one per class",
        ),
        ({"columns": {**COLUMNS, "base_margin": "b"}}, "column 'b' is named more than once"),
        (
            {"columns": {**COLUMNS, "base_margin": "m\n"}},
            "columns: the name of column 'm\\n' must not contain the character '\\n': rename it",
        ),
        (
            {"eval_metric": "rmse"},
            "eval_metric rmse does not apply to objective binary:logistic; use one of: logloss",
        ),
        (
            {"objective": REGRESSION, "eval_metric": ["auc"]},
            "does not apply to objective reg:squarederror; use one of: rmse",
        ),
        (
            {"interaction_constraints": [["a", "bb"]]},
            "interaction_constraints names 'bb', which is not a feature (did you mean b?)",
        ),
        (
            {"monotone_constraints": {"aa": 1}},
            "monotone_constraints names 'aa', which is not a feature (did you mean a?)",
        ),
        ({"monotone_constraints": {"c": 1}}, "names 'c', which has levels without an order"),
        ({"monotone_constraints": {"a": 2}}, "monotone_constraints.a: input should be -1, 0 or 1, got 2"),
        (
            {"monotone_constraints": {"a": 1}, "vote_top_k": 1},
            "vote_top_k elects features regardless of monotone_constraints: set only one",
        ),
        (
            {"num_parallel_tree": 1024, "objective": "multi:softprob", "num_class": 2},
            "a round has 2048 trees, but at most 1024 are allowed",
        ),
        (
            {"objective": "reg:absoluteerror", "on_loss": "shrink", "protection": "plain"},
            'reg:absoluteerror with on_loss = "shrink": its gradients are signs',
        ),
        (
            {"grow_policy": "symmetric", "max_leaves": 8},
            "grow_policy symmetric with max_leaves = 8: levels are split as a whole; set max_depth",
        ),
        (
            {"grow_policy": "symmetric", "colsample_bynode": 0.5},
            "grow_policy symmetric with colsample_bynode = 0.5: all nodes of a level share one split; set",
        ),
        (
            {"grow_policy": "symmetric", "vote_top_k": 1},
            "grow_policy symmetric with vote_top_k: features are elected per node, but a level",
        ),
        (
            {"grow_policy": "oblivious"},
            "grow_policy: input should be 'depthwise', 'lossguide' or 'symmetric'",
        ),
        ({"max_leaves": 1}, "max_leaves = 1 allows no split; set 0 for no limit"),
        ({"num_leaves": 31}, "unknown key 'num_leaves' (did you mean max_leaves?)"),
        ({"subsample": 0.01}, "subsample: input should be greater than or equal to 0.05, got 0.01"),
        ({"sampling_method": "goss"}, "sampling_method: input should be 'uniform', 'gradient_based' or"),
        (
            {"sampling_method": "gradient_based"},
            "sampling_method gradient_based with subsample = 1 would sample every row: lower subsample",
        ),
        (
            {"sampling_method": "gradient_based", "subsample": 0.5, "objective": "reg:absoluteerror"},
            "sampling_method gradient_based samples rows by the size of their gradients",
        ),
        (
            {"sampling_method": "gradient_based", "subsample": 0.5, "vote_top_k": 1},
            "vote_top_k elects features by each party's own rows, but sampling_method gradient_based may",
        ),
        ({"validation_fraction": 0.01}, "validation_fraction must be 0, or between 0.05 and 0.9"),
        ({"early_stopping_rounds": 5}, "early_stopping_rounds needs validation rows"),
        (
            {"validation_fraction": 0.2, "columns": {**COLUMNS, "validation": "v"}},
            "validation_fraction samples validation rows, but column 'v' also marks them: set only one",
        ),
        ({"vote_top_k": 1, "colsample_bynode": 0.5}, "vote_top_k elects features, but colsample_* samples"),
        ({"columns": {**COLUMNS, "row_id": "a"}}, "column 'a' is named more than once"),
        (
            {"columns": {**COLUMNS, "validation": "v\n"}},
            "columns: the name of column 'v\\n' must not contain the character '\\n': rename it",
        ),
        ({"random_state": 1}, "unknown key 'random_state' (did you mean seed?)"),
        ({"objective": "multi:softprob"}, "multi:softprob needs num_class"),
        ({"num_class": 3}, "num_class is for multi:softprob, not for binary:logistic: remove it"),
        ({"objective": "reg:quantileerror"}, "reg:quantileerror needs quantile_alpha"),
        (
            {"objective": "reg:quantileerror", "quantile_alpha": 1},
            "quantile_alpha: input should be less",
        ),
        ({"huber_slope": 3}, "huber_slope is for reg:pseudohubererror, not for binary:logistic: remove it"),
        (
            {"objective": "count:poisson", "scale_pos_weight": 3},
            "scale_pos_weight is for binary:logistic, not for count:poisson: remove it",
        ),
        (
            {"objective": "reg:tweedie", "tweedie_variance_power": 2},
            "tweedie_variance_power: input should be",
        ),
        ({"objective": "reg:gamma", "base_score": 0}, "base_score 0.0 must be above 0 for reg:gamma"),
        ({"eval_metric": "error@1.5"}, "unknown eval_metric 'error@1.5'"),
        ({"eval_metric": "error@t"}, "eval_metric 'error@t' needs a number after the @, e.g. 0.5 or 1.5"),
        (
            {"eval_metric": "mae"},
            "eval_metric mae does not apply to objective binary:logistic; use one of: logloss",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"]}},
            "columns.classes needs objective multi:softprob, not binary:logistic; for two values, set",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"]}, "objective": REGRESSION},
            "columns.classes needs objective multi:softprob, not reg:squarederror",
        ),
        (
            {**CLASSES, "num_class": 4},
            "num_class is 4, but columns.classes lists 3: remove num_class",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u"]}},
            "columns: classes must list at least two label values, and each only once",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u", "u"]}},
            "columns: classes must list at least two label values, and each only once",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u", ""]}},
            "columns: class '' is not a label value, because it is a missing value; replace it in the tables",
        ),
        ({"columns": {**COLUMNS, "classes": ["u", "v\n"]}}, r"class 'v\n' is not one line of text"),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"], "positive": "u"}},
            "columns: positive is for labels with two values, but classes is for more: remove one of them",
        ),
        (
            {"objective": "multi:softprob", "num_class": 100, "max_depth": 12},
            "100 trees of depth 12 per round can have more than 65536 leaves in total: lower max_depth",
        ),
        # rankings
        (
            {"objective": "rank:ndcg"},
            "rank:ndcg needs columns.group, the column whose equal values mark rows",
        ),
        (
            {"columns": {**COLUMNS, "group": "q"}},
            "columns.group needs objective rank:ndcg or rank:pairwise, not binary:logistic",
        ),
        ({**RANKING, "columns": {**COLUMNS, "group": "a"}}, "column 'a' is named more than once"),
        ({"columns": {**COLUMNS, "qid": "q"}}, "unknown key 'columns.qid' (did you mean group?)"),
        (
            {**RANKING, "lambdarank_pair_method": "mean"},
            "lambdarank_pair_method mean samples pairs at random",
        ),
        (
            {"objective": "survival:aft", "columns": {**COLUMNS, "label_upper_bound": "z", "group": "q"}},
            "columns.group needs objective rank:ndcg or rank:pairwise, not survival:aft",
        ),
        (
            {**RANKING, "columns": {**COLUMNS, "label_upper_bound": "z", "group": "q"}},
            "columns.label_upper_bound is only for survival:aft, survival:cox, but rank:ndcg has one label ",
        ),
        ({**RANKING, "lambdarank_unbiased": True}, "unknown key 'lambdarank_unbiased'"),
        ({**RANKING, "lambdarank_num_pair_per_sample": 0}, "lambdarank_num_pair_per_sample: input should be"),
        ({"ndcg_exp_gain": False}, "ndcg_exp_gain is for rank:ndcg, not for binary:logistic: remove it"),
        ({"objective": "rank:map"}, "unknown objective 'rank:map'; known: "),
        (
            {**RANKING, "eval_metric": "auc"},
            "eval_metric auc does not apply to objective rank:ndcg; use one of: ndcg, ndcg-, ndcg@k, ndcg@k-",
        ),
        ({**RANKING, "eval_metric": "ndcg@0"}, "unknown eval_metric 'ndcg@0'"),
        ({"eval_metric": "ndcg@5"}, "eval_metric ndcg@5 does not apply to objective binary:logistic"),
        ({"base_score": 1.0}, "base_score 1.0 must lie strictly between 0 and 1"),
        (
            {"objective": REGRESSION, "columns": {**COLUMNS, "positive": "yes"}},
            "columns.positive needs objective binary:logistic, not reg:squarederror",
        ),
        (
            {"columns": {"label": "y"}},
            "columns: there are no features: name at least one column in numeric",
        ),
        ({"columns": {"label": "a", "numeric": ["a"]}}, "columns: column 'a' is named more than once"),
        ({"columns": {"label": "y", "weight": "a", "numeric": ["a"]}}, "'a' is named more than once"),
        ({"columns": {"label": "y", "numeric": ["a", "a"]}}, "'a' is named more than once"),
        ({"columns": {**COLUMNS, "categorical": {"a": ["x"]}}}, "'a' is named more than once"),
        (
            {"columns": {**COLUMNS, "categorical": {"c": []}}},
            "columns: column 'c' must have at least one level, and must list each level only once",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c": ["x", "x"]}}},
            "columns: column 'c' must have at least one level, and must list each level only once",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c": [f"{level}" for level in range(256)]}}},
            "columns: column 'c' has 256 levels, but at most 255 are allowed: name it in target_means",
        ),
        ({"max_cat_to_onehot": 0}, "max_cat_to_onehot: input should be greater than or equal to 1, got 0"),
        ({"max_cat_threshold": 1}, "max_cat_threshold: input should be greater than or equal to 2, got 1"),
        # names that no file or no reader of the model takes
        (
            {"columns": {"label": "y", "numeric": ["ok", "a[0]"]}},
            "columns: the name of column 'a[0]' must not contain the character '[': rename it",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c]": ["x"]}}},
            "columns: the name of column 'c]' must not contain the character ']': rename it",
        ),
        (
            {"columns": {"label": "y", "numeric": ["a<b"]}},
            "columns: the name of column 'a<b' must not contain the character '<': rename it",
        ),
        (
            {"columns": {"label": "y", "numeric": ["\x01"]}},
            "columns: the name of column '\\x01' must not contain the character '\\x01': rename it",
        ),
        (
            {"columns": {**COLUMNS, "label": "y\n"}},
            "columns: the name of column 'y\\n' must not contain the character '\\n': rename it",
        ),
        (
            {"columns": {**COLUMNS, "weight": "w\x85"}},
            "columns: the name of column 'w\\x85' must not contain the character '\\x85': rename it",
        ),
        (
            {"columns": {"label": "y", "numeric": ["\ud800"]}},
            "columns.numeric.0: input should be a valid string",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c": ["x", "a\tb"]}}},
            "columns: a level of 'c' contains the character '\\t': replace it in the tables",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c": ["\udfff"]}}},
            "columns: a level of 'c' contains the character '\\udfff': replace it in the tables",
        ),
    ],
)
def test_one_line_that_names_the_key(settings, says):
    with pytest.raises(ConfigError) as caught:
        Terms.read({**BASE, **settings}, "train.toml")
    message = str(caught.value)
    assert message.startswith("train.toml: ")
    assert says in message
    assert "\n" not in message


@given(
    st.dictionaries(
        st.sampled_from([*Terms.file_keys(), "etaa", "x"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=4),
            st.lists(st.text(max_size=2), max_size=3),
            st.dictionaries(st.text(max_size=3), st.text(max_size=2), max_size=2),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_settings_are_read_or_refused_with_one_line(settings):
    message = "terms: "
    try:
        terms(**settings)
    except ConfigError as error:
        message = str(error)
    assert message.startswith("terms: ")
    assert "\n" not in message


def test_only_features_are_named_as_xgboost_wants_it():
    schema = {"label": "y[0]", "weight": "<w>", "numeric": ["ä 1"], "categorical": {"c": ["[<]"]}}
    assert terms(columns=schema).columns.features == ("ä 1", "c")


@pytest.mark.timeout(5)
def test_many_columns_are_checked_at_once():
    names = [f"x{i}" for i in range(40_000)]
    assert with_columns(numeric=names).columns.numeric == tuple(names)
    with pytest.raises(ConfigError, match="'x7' is named more than once"):
        with_columns(numeric=[*names, "x7"])


def test_what_hangs_on_the_objective():
    poisson = {"objective": "count:poisson"}
    assert terms().objective.step == 0.0
    assert terms(max_delta_step=2).objective.step == 2.0
    assert terms(**poisson).objective.step == terms(**poisson).objective.loss.max_delta_step == 0.7
    assert terms(**poisson, max_delta_step=0).objective.step == 0.0
    assert terms(**poisson, max_delta_step=0).objective.loss.max_delta_step == 0.0
    assert (terms().bits, terms(**poisson).bits, terms(**poisson, gradient_bits=12).bits) == (16, 24, 12)
    assert terms(objective="reg:tweedie", tweedie_variance_power=1.2).metrics == ("tweedie-nloglik@1.2",)


def test_nearest():
    assert nearest("max_dept", ["max_depth", "rounds"]) == " (did you mean max_depth?)"
    assert nearest("eta", ["max_depth"]) == ""
    assert nearest("qqq", ["max_depth"]) == ""
