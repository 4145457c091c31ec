"""Names that users of XGBoost, LightGBM and scikit-learn bring along: ours for them, or why there is none.

Promises: a name has one of both.
Refuses: nothing.
"""

from collections.abc import Collection

_OURS = {
    "learning_rate": "eta shrinkage_rate",
    "rounds": "n_estimators num_boost_round num_round num_rounds nrounds iterations n_iter num_iteration "
    "num_iterations num_tree num_trees max_iter",
    "max_leaves": "num_leaves num_leaf max_leaf max_leaf_nodes",
    "reg_lambda": "lambda lambda_l2 l2_regularization",
    "reg_alpha": "alpha lambda_l1 l1_regularization",
    "gamma": "min_split_loss min_split_gain min_gain_to_split",
    "min_child_weight": "min_sum_hessian_in_leaf min_sum_hessian_per_leaf min_sum_hessian min_hessian",
    "max_delta_step": "max_leaf_output max_tree_output poisson_max_delta_step",
    "max_bin": "max_bins",
    "colsample_bytree": "feature_fraction sub_feature",
    "colsample_bynode": "feature_fraction_bynode sub_feature_bynode max_features",
    "subsample": "bagging_fraction bagging sub_row",
    "sampling_method": "data_sample_strategy",
    "monotone_constraints": "monotonic_cst monotone_constraint mc",
    "interaction_constraints": "interaction_cst",
    "seed": "random_state random_seed",
    "early_stopping_rounds": "early_stopping_round early_stopping n_iter_no_change",
    "eval_metric": "metric metrics metric_types scoring",
    "objective": "loss app application objective_type",
    "quantile_alpha": "alpha quantile",
    "num_class": "num_classes",
    "vote_top_k": "top_k topk",
    "xgb_model": "warm_start init_model input_model model_in",
    "lambdarank_num_pair_per_sample": "lambdarank_truncation_level",
    "lambdarank_normalization": "lambdarank_norm",
    "label": "target label_column",
    "weight": "weight_column sample_weight",
    "group": "qid query query_id query_column group_id group_column",
    "categorical": "categorical_feature categorical_features cat_features cat_feature",
    "base_margin": "init_score",
    "validation": "eval_set valid valid_data",
    "validation_fraction": "eval_set test_size",
    "nthread": "n_jobs nthreads num_thread num_threads n_threads",
    "n_jobs": "nthread nthreads num_thread num_threads n_threads",
    # objectives
    "binary:logistic": "binary logistic log_loss logloss binary_crossentropy cross_entropy bernoulli",
    "multi:softprob": "multiclass softmax multiclassova multi:softmax",
    "reg:squarederror": "regression regression_l2 l2 mse squared_error mean_squared_error rmse reg:linear ls",
    "reg:absoluteerror": "regression_l1 l1 mae absolute_error mean_absolute_error lad",
    "reg:pseudohubererror": "huber",
    "reg:quantileerror": "quantile",
    "count:poisson": "poisson",
    "reg:tweedie": "tweedie",
    "rank:ndcg": "lambdarank rank_xendcg",
    # metrics
    "logloss": "binary_logloss log_loss neg_log_loss binary_crossentropy binary",
    "error": "binary_error accuracy",
    "mlogloss": "multi_logloss multiclass softmax",
    "merror": "multi_error",
    "auc": "roc_auc",
    "aucpr": "average_precision",
    "mae": "l1 mean_absolute_error absolute_error neg_mean_absolute_error",
    "rmse": "l2 mse l2_root root_mean_squared_error squared_error mean_squared_error",
    "mphe": "huber",
    "poisson-nloglik": "poisson",
}
_WHY_NOT = {
    "boosting is always gbtree (gbdt): leave it out": "booster boosting boosting_type boost",
    "trees always grow from histograms (hist): leave it out": "tree_method tree_learner updater "
    "process_type refresh_leaf enable_bundle force_col_wise force_row_wise histogram_pool_size",
    "trees grow on the processors of the sites: leave it out": "device device_type gpu_id predictor "
    "gpu_device_id gpu_platform_id gpu_use_dp num_gpu",
    "threads are each site's own: nthread in its file, or in fedboost.simulate": "n_jobs nthread nthreads "
    "num_thread num_threads n_threads",
    "what is printed is no setting of a training: leave it out": "verbose verbosity verbose_eval silent "
    "metric_freq",
    "a leaf needs a sum of hessians and not a count of rows: set min_child_weight (a row adds at most 0.25 "
    "for binary:logistic, 1 for reg:squarederror)": "min_data_in_leaf min_child_samples min_samples_leaf "
    "min_data min_data_per_leaf min_weight_fraction_leaf min_samples_split",
    "a split needs a gain: set gamma": "min_impurity_decrease ccp_alpha",
    "splits go by gain, as in XGBoost: leave it out": "criterion extra_trees extra_tree path_smooth "
    "feature_weights feature_contri cegb_tradeoff cegb_penalty_split linear_tree forcedsplits_filename",
    "rows are drawn anew for each tree: set subsample alone": "subsample_freq bagging_freq",
    'drawing by gradients is sampling_method = "gradient_based", with subsample': "top_rate other_rate",
    "cut points are those of all rows: set max_bin": "subsample_for_bin bin_construct_sample_cnt "
    "min_data_in_bin",
    "dart is not built: leave it out": "rate_drop drop_rate skip_drop one_drop max_drop sample_type "
    "normalize_type uniform_drop drop_seed xgboost_dart_mode",
    "set max_cat_to_onehot, max_cat_threshold and reg_lambda": "cat_l2 cat_smooth min_data_per_group",
    "columns.categorical names the categorical features; of a DataFrame, estimators take the columns of text "
    "and categories": "enable_categorical feature_types categorical_feature categorical_features",
    "it is given to fit": "eval_set sample_weight qid",
    "the same rows and terms always make the same model: leave it out": "deterministic",
    "what a table leaves empty, and NaN, is missing: leave it out": "missing use_missing zero_as_missing",
    "set scale_pos_weight, or name a column of weights, columns.weight": "class_weight is_unbalance "
    "unbalance pos_bagging_fraction neg_bagging_fraction",
    "each class or output has a tree of its own: leave it out": "multi_strategy",
    "`fedboost explain` and Model.importance say what a model goes by": "importance_type",
    "a number that boosting starts from is base_score, a column of them columns.base_margin": "init "
    "boost_from_average",
    "early stopping counts every improvement: set early_stopping_rounds": "tol early_stopping_min_delta",
    "the last of eval_metric is watched": "first_metric_only",
    "callbacks are given to fedboost.simulate": "callbacks",
    "terms are always validated: leave it out": "validate_parameters disable_default_eval_metric",
    "one seed draws everything: set seed": "bagging_seed feature_fraction_seed data_random_seed extra_seed "
    "objective_seed data_seed",
    "the model is an ordinary XGBoost file, which fedboost train writes with --out": "output_model model_out",
}
OTHER_NAMES = {
    name: tuple(ours for ours, names in _OURS.items() if name in names.split())
    for names in _OURS.values()
    for name in names.split()
}
"""A name elsewhere, and the names here of what it means there."""
WHY_NOT = {name: why for why, names in _WHY_NOT.items() for name in names.split()}
"""A name elsewhere, and why there is none here."""


def name_here(word: str, known: Collection[str]) -> str | None:
    """The one of the known names that another library calls so; `columns.label` is known as `label`, too."""
    ends = {name.rpartition(".")[2]: name for name in known}
    return next((ends[name] for name in OTHER_NAMES.get(word, ()) if name in ends), None)
