"""Names of other libraries: each parameter of their estimators is one of ours, hinted at or explained."""

import inspect

import lightgbm
import pytest
import sklearn.ensemble
import xgboost

import fedboost as fb
from fedboost.gbdt.metrics import METRICS
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.terms.columns import Schema
from fedboost.terms.reading import OTHER_NAMES, WHY_NOT
from fedboost.terms.terms import Terms

COLUMNS = {"label": "y", "numeric": ["x"]}
ESTIMATORS = (
    xgboost.XGBClassifier,
    xgboost.XGBRegressor,
    xgboost.XGBRanker,
    xgboost.XGBRFClassifier,
    lightgbm.LGBMClassifier,
    lightgbm.LGBMRegressor,
    lightgbm.LGBMRanker,
    sklearn.ensemble.HistGradientBoostingClassifier,
    sklearn.ensemble.HistGradientBoostingRegressor,
    sklearn.ensemble.GradientBoostingClassifier,
    sklearn.ensemble.GradientBoostingRegressor,
)
OF_XGBOOST = (
    "eta alpha lambda gamma max_delta_step subsample sampling_method colsample_bytree colsample_bylevel "
    "colsample_bynode tree_method updater refresh_leaf process_type grow_policy max_leaves max_bin "
    "num_parallel_tree monotone_constraints interaction_constraints multi_strategy max_cat_to_onehot "
    "max_cat_threshold sample_type normalize_type rate_drop one_drop skip_drop objective base_score "
    "eval_metric seed nthread device booster verbosity validate_parameters disable_default_eval_metric "
    "huber_slope quantile_alpha aft_loss_distribution lambdarank_pair_method ndcg_exp_gain num_boost_round "
    "early_stopping_rounds verbose_eval xgb_model callbacks obj custom_metric maximize "
    "seed_per_iteration max_cached_hist_node data_split_mode"
)
"""Of the page of its parameters, and of xgboost.train."""
OF_LIGHTGBM = (
    "boosting num_iterations learning_rate num_leaves tree_learner num_threads device_type seed "
    "deterministic max_depth min_data_in_leaf min_sum_hessian_in_leaf bagging_fraction bagging_freq "
    "bagging_seed feature_fraction feature_fraction_bynode extra_trees early_stopping_round "
    "first_metric_only max_delta_step lambda_l1 lambda_l2 min_gain_to_split drop_rate max_drop "
    "top_rate other_rate min_data_per_group max_cat_threshold cat_l2 cat_smooth monotone_constraints "
    "path_smooth interaction_constraints verbosity max_bin bin_construct_sample_cnt use_missing "
    "zero_as_missing categorical_feature is_unbalance scale_pos_weight metric data_sample_strategy "
    "lambdarank_norm"
)
"""Of the page of its parameters: those that say what is learned."""
PARAMETERS = sorted(
    {name for kind in ESTIMATORS for name in kind().get_params()}
    | {*OF_XGBOOST.split(), *OF_LIGHTGBM.split()}
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_known_hinted_at_or_explained(name):
    if name in Terms.file_keys():
        return
    with pytest.raises(fb.ConfigError) as error:
        fb.Terms(columns=COLUMNS, **{name: 1})
    told = str(error.value).removeprefix(f"terms: unknown key {name!r}")
    assert told.startswith((" (did you mean ", ": "))
    assert told in (f" (did you mean {hint}?)" for hint in hints(name)) or told == f": {WHY_NOT[name]}"
    estimator = inspect.signature(fb.FederatedRegressor).parameters
    if name not in estimator:
        with pytest.raises(TypeError, match=r"has no parameter '\w+'( \(did you mean |: )"):
            fb.FederatedRegressor(**{name: 1})


def hints(name):
    """What may be hinted at: the keys, those of columns with their table."""
    ours = OTHER_NAMES.get(name, ())
    return [*(key for key in ours if key in Terms.file_keys()), *(f"columns.{key}" for key in ours)]


def test_the_names_here_exist():
    here = {*Terms.file_keys(), *Schema.file_keys(), *OBJECTIVES, *METRICS, "nthread", "n_jobs"}
    assert {ours for names in OTHER_NAMES.values() for ours in names} <= here
    assert not WHY_NOT.keys() & Terms.file_keys().keys()


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"objective": "binary"}, "binary:logistic"),
        ({"objective": "regression"}, "reg:squarederror"),
        ({"objective": "regression_l1"}, "reg:absoluteerror"),
        ({"objective": "multiclass"}, "multi:softprob"),
        ({"objective": "multi:softmax"}, "multi:softprob"),
        ({"objective": "reg:linear"}, "reg:squarederror"),
        ({"objective": "lambdarank"}, "rank:ndcg"),
        ({"objective": "log_loss"}, "binary:logistic"),
        ({"objective": "quantile"}, "reg:quantileerror"),
        ({"eval_metric": "binary_logloss"}, "logloss"),
        ({"eval_metric": "roc_auc"}, "auc"),
        ({"eval_metric": "l2", "objective": "reg:squarederror"}, "rmse"),
        ({"eval_metric": "accuracy"}, "error"),
    ],
    ids=str,
)
def test_objectives_and_metrics_of_others(settings, hint):
    with pytest.raises(fb.ConfigError, match=f"did you mean {hint}\\?"):
        fb.Terms(columns=COLUMNS, **settings)


def test_columns_of_others():
    for name, hint in {"qid": "group", "target": "label", "evals": "validation"}.items():
        with pytest.raises(fb.ConfigError, match=rf"unknown key 'columns\.{name}' \(did you mean {hint}\?\)"):
            fb.Terms(columns={**COLUMNS, name: "x"})
