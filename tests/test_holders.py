"""Classes of holders: none overrides a private member of another."""

import importlib
import pkgutil
from abc import ABC, abstractmethod

import pytest

import fedboost.holders
from fedboost.holders.columns import HOLDERS, PredictionHolder, VerticalHolder
from fedboost.holders.other_tasks import DriftHolder, EvaluationHolder, SummaryHolder
from fedboost.holders.shard import BaseHolder
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.terms.session import TASKS


def members(kind):
    """The private members that a class defines, but for those that it leaves to others."""
    names = {name for name in (*vars(kind), *vars(kind).get("__annotations__", ())) if name.startswith("_")}
    return {
        name
        for name in names
        if not name.startswith(("__", "_abc_"))
        and not getattr(vars(kind).get(name), "__isabstractmethod__", False)
    }


def overridden(kind):
    """The private members of its bases that a class defines, too."""
    bases = (base for base in kind.__mro__[1:] if base.__module__ == kind.__module__ or is_of_holders(base))
    return members(kind) & set().union(*map(members, bases))


def is_of_holders(kind):
    return kind.__module__.startswith("fedboost.holders")


def classes():
    names = [each.name for each in pkgutil.iter_modules(fedboost.holders.__path__, "fedboost.holders.")]
    every = (each for name in names for each in vars(importlib.import_module(name)).values())
    return sorted({each for each in every if isinstance(each, type) and is_of_holders(each)}, key=str)


class Base(ABC):
    _kept: int = 1

    @abstractmethod
    def _due(self): ...

    def _own(self):
        return 1


class Overriding(Base):
    _kept: int

    def _due(self): ...

    def _own(self): ...

    def _other(self): ...


def test_the_search_finds_what_a_class_overrides():
    assert overridden(Overriding) == {"_kept", "_own"}


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_no_class_overrides_a_private_member_of_another(kind):
    assert not overridden(kind)


def test_each_task_has_a_holder_on_the_one_base():
    kinds = {VerticalHolder, PredictionHolder, HorizontalHolder, SummaryHolder, EvaluationHolder, DriftHolder}
    assert all(issubclass(kind, BaseHolder) for kind in kinds)
    assert kinds <= {*classes()}
    assert {*HOLDERS} == {*TASKS}
