"""The table of tasks: its facts go together, each column has a row for each task, and nobody else matches on
names."""

import ast
from dataclasses import FrozenInstanceError
from typing import get_args

import pytest
from name_matches import Search, sources

import fedboost
from fedboost.boosting.queries import Query
from fedboost.holders.columns import HOLDERS
from fedboost.runtime.aggregator.programs import OF_TASKS
from fedboost.runtime.site.policy import BY_COLUMNS, RULES
from fedboost.terms.session import TASKS, TRAINING, TaskName, task_of
from fedboost.views.approval import TASK_WORDS
from fedboost.views.results import RESULTS, VIEWS

TABLE = "terms/session.py"
COLUMNS = {
    "boosting/programs/tasks.py": {"PROGRAMS"},
    "boosting/queries/columns.py": {"tasks"},
    "boosting/queries/ids.py": {"tasks"},
    "boosting/queries/labels.py": {"tasks"},
    "holders/columns.py": {"HOLDERS"},
    "holders/other_tasks.py": {"OTHER_HOLDERS"},
    "runtime/aggregator/programs.py": {"OF_TASKS"},
    "runtime/site/policy.py": {"BY_COLUMNS", "RULES"},
    "views/approval.py": {"TASK_WORDS", "_of_other_tasks", "RELAXED"},
    # functions and the policy's rule `evaluate`, which have the name of a task
    "__init__.py": {"_HOMES", "__all__"},
}
"""Where a layer keeps what it does for each task: by file the names that it is assigned to."""
MOST_PREDICTS = 5
SEARCH = Search("TASKS", TASKS)


# ---- nobody else matches on a name ------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        'terms.task.name == "train"',
        '"drift" != task',
        'terms.task is TASKS["drift"]',
        'terms.task.name == session.TASKS["drift"].name',
        'task in ("evaluate",)',
        'task not in ["predict", other]',
        'task in {"predict"}',
        'match task:\n    case "train" | "tune":\n        pass',
        'MEASURING = ("evaluate", "drift")',
        'Names = Literal["train", "tune"]',
        'TURNS = {"predict": 3}',
        'LOUD = {("tasks", "predict"): "text"}',
        'for name in ["train", "tune"]:\n    pass',
        'TO_DRIFT = "drift"',
        'DRIFT = TASKS["drift"]',
        'tasks = frozenset({"drift"})',
    ],
)
def test_the_search_finds_what_matches_on_a_name(source):
    assert SEARCH.places(source)


@pytest.mark.parametrize(
    "source",
    [
        'settings_for(terms, TASKS["drift"])',
        'def text_of(model, task=TASKS["train"]):\n    pass',
        'return_of(TASKS["train"].name)',
        "row.name = TASKS[name].name",
        'terms.changed(program="describe")',
        "terms.task is task",
        '{"program": TASKS["tune"].program}',
    ],
)
def test_the_search_passes_over_values(source):
    assert not SEARCH.places(source)


def test_nobody_but_the_table_and_its_columns_matches_on_the_name_of_a_task():
    assert SEARCH.files(TABLE) == COLUMNS


def test_what_predicts_is_asked_of_its_task():
    uses = [
        f"{path}:{node.lineno}"
        for path, source in sources().items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "predicts"
    ]
    assert len(uses) <= MOST_PREDICTS, uses


# ---- the columns ------------------------------------------------------------------------------------


def test_the_names_are_those_of_policies():
    assert get_args(TaskName) == tuple(TASKS)
    assert all(name == row.name for name, row in TASKS.items())


@pytest.mark.parametrize(
    "column", [OF_TASKS, HOLDERS, RULES, TASK_WORDS], ids=["program", "holder", "rules", "words"]
)
def test_a_column_has_each_task_in_the_order_of_the_table(column):
    assert [*column] == [*TASKS]


def test_each_task_that_an_analyst_requests_and_that_makes_no_model_has_a_result():
    due = {row.name for row in TASKS.values() if row.by_analyst and not row.makes_model}
    assert due == {*RESULTS} == {*VIEWS} == {name for name, words in TASK_WORDS.items() if words.told}


@pytest.mark.parametrize("name", TASK_WORDS)
def test_sites_are_told_of_a_model_where_one_is_measured(name):
    assert ("including the model" in TASK_WORDS[name].told) is TASKS[name].measures


def test_where_columns_are_apart_rows_are_not_compared_with_a_reference():
    assert {*BY_COLUMNS} == {*TASKS} - {"drift"}


@pytest.mark.parametrize("name", TASKS)
def test_each_task_has_queries(name):
    asked = [kind for kind in get_args(Query) if name in kind.tasks]
    assert asked
    assert all(kind.tasks <= {*TASKS} for kind in asked)


# ---- the facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TASKS.values(), ids=TASKS)
def test_the_facts_of_a_task_go_together(row):
    assert getattr(fedboost, row.function, None) or row.function == "predict_jointly"
    assert row.trains is (row.max_turns is None) is (row.name in TRAINING)
    assert row.trains or not (row.makes_model or row.takes_candidates)
    assert not row.measures or row.model_is
    assert not row.uses_reference or row.measures
    assert row.is_protected is row.by_analyst
    with pytest.raises(FrozenInstanceError):
        row.name = "another"


def test_one_program_starts_each_task_that_an_analyst_requests():
    programs = [row.program for row in TASKS.values() if row.by_analyst]
    assert len({*programs}) == len(programs)
    assert None not in programs
    assert [task_of(program) for program in programs] == [row for row in TASKS.values() if row.by_analyst]
    assert task_of("own:train") is TASKS["train"]
