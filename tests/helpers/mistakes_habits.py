"""Mistakes of people who come from other tools: options, and names of XGBoost, LightGBM and scikit-learn."""

from mistakes import Mistake
from sites import terms

from fedboost.runtime.tasks import terms_to_toml

SIMULATE = "simulate mine.toml --data rows.csv --out new.json"


def with_line(line, old=None):
    """A terms file with one more line, in place of another if one is given."""
    text = terms_to_toml(terms(["north", "south"]))
    return {"mine.toml": f"{line}\n{text}" if old is None else text.replace(old, line)}


def named(line, *says):
    """A simulation under terms with this line."""
    return Mistake(SIMULATE, ("mine.toml: ", *says), with_line(line))


MISTAKES = {
    "option misspelt": Mistake(
        "demo --rouns 3 --out new", ("--rouns", "--rounds?", "see fedboost demo --help")
    ),
    "option of another command": Mistake(
        "predict model.json rows.csv --output new.csv", ("--output", "--out?")
    ),
    "option in Python's spelling": Mistake(
        "terms rows.csv --label y --base_margin x", ("--base_margin", "did you mean --base-margin?")
    ),
    "setting as an option": Mistake(
        "simulate terms.toml --data rows.csv --rounds 50 --out new.json",
        ("--rounds", "setting of the terms file"),
    ),
    "XGBoost's setting as an option": Mistake(
        "simulate terms.toml --data rows.csv --eta 0.1", ("--eta", "learning_rate in the terms file")
    ),
    "command misspelt": Mistake("simulat terms.toml --data rows.csv", ("'simulat'", "simulate?")),
    "command of XGBoost": Mistake(
        "fit terms.toml --data rows.csv", ("no command 'fit'", "see fedboost --help")
    ),
    "sub-command misspelt": Mistake("keys agregator", ("'keys agregator'", "aggregator?")),
    "argument forgotten": Mistake("simulate --data rows.csv", ("needs TERMS", "a TOML file")),
    "option forgotten": Mistake("simulate terms.toml", ("needs --data", "see fedboost simulate --help")),
    "value forgotten": Mistake("simulate terms.toml --data", ("--data", "needs a value")),
    "number in words": Mistake("demo --rounds ten --out new", ("--rounds ten", "integer")),
    "number too low": Mistake("simulate terms.toml --data rows.csv --parties 0", ("--parties 0", "1")),
    "a file too many": Mistake(
        "simulate terms.toml rows.csv --data rows.csv", ("(rows.csv)", "see fedboost")
    ),
    "eta": named("eta = 0.1", "'eta'", "did you mean learning_rate?"),
    "num_boost_round": named("num_boost_round = 10", "'num_boost_round'", "did you mean rounds?"),
    "num_leaves": named("num_leaves = 31", "'num_leaves'", "did you mean max_leaves?"),
    "min_data_in_leaf": named("min_data_in_leaf = 20", "'min_data_in_leaf'", "set min_child_weight"),
    "booster": named('booster = "gbtree"', "'booster'", "always gbtree", "leave it out"),
    "tree_method": named('tree_method = "hist"', "'tree_method'", "hist", "leave it out"),
    "n_jobs": named("n_jobs = 4", "'n_jobs'", "nthread in its file"),
    "qid": named('qid = "ward"', "'qid'", "did you mean columns.group?"),
    "eval_set": named('eval_set = "held out"', "'eval_set'", "did you mean columns.validation?"),
    "objective of LightGBM": Mistake(
        SIMULATE,
        ("mine.toml", "'binary'", "did you mean binary:logistic?"),
        with_line('objective = "binary"', 'objective = "binary:logistic"'),
    ),
    "metric of LightGBM": named('eval_metric = "binary_logloss"', "did you mean logloss?"),
    "accuracy": named('eval_metric = "accuracy"', "did you mean error?"),
}
