"""Trials of settings side by side, and the best of them."""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, Strict

from fedboost.gbdt.metrics import grows, own_name
from fedboost.results.base import Count, Number, Part, Result
from fedboost.terms.terms import Terms


class Trial(Part):
    """A candidate: its settings, the rounds it was trained for, the best of them, and by its name the metric
    there."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Number | None]

    settings: dict[str, Annotated[int, Strict()] | Number]
    rounds: Count
    best_round: Count

    def value(self, metric: str) -> float | None:
        """The metric in the best round; None where it is not a number."""
        return (self.__pydantic_extra__ or {}).get(metric)


class Tuning(Result):
    """What a session that tried candidates found.

    metric: the one that was watched, of the validation rows; best: number of the best trial of those that
    were trained longest.
    """

    task: ClassVar[str] = "tune"
    metric: str
    best: Count
    trials: tuple[Trial, ...] = Field(repr=False)

    def fits(self, terms: Terms) -> bool:
        """True if the trials are those of the candidates in the terms."""
        candidates, metric = terms.objective.candidates, own_name(terms.metrics[-1])
        if self.metric != metric:
            return False
        if not len(self.trials) == len(candidates) > self.best:
            return False
        best = self.trials[self.best]
        return (
            all(each.settings == dict(own) for each, own in zip(self.trials, candidates, strict=True))
            and all(each.best_round <= each.rounds <= terms.trees.rounds for each in self.trials)
            and all({*(each.model_extra or {})} == {metric} for each in self.trials)
            and best.best_round >= 1
            and best.value(metric) is not None
        )

    @property
    def ranked(self) -> list[int]:
        """Numbers of the trials: the best one, then those that were trained longest, better ones first."""
        sign = -1.0 if grows(self.metric) else 1.0
        return sorted(
            range(len(self.trials)),
            key=lambda n: (
                n != self.best,
                -self.trials[n].rounds,
                sign * (self.trials[n].value(self.metric) or 0.0),
            ),
        )
