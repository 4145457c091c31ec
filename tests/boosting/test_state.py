"""Hashes of a state go on from earlier ones, whichever of these were needed."""

from itertools import product

import pytest

from fedboost.boosting.state import BoostingState
from fedboost.fixedpoint import Scale
from fedboost.gbdt.tree import Split, Splits

SCALES = Scale(0, 16), Scale(-1, 16), 0.0
LEVELS = [Splits.of(()), Splits.of([Split(0, 1, 3, True, 1)]), Splits.of([Split(2, 0, 1, False, 3, 6)])]
VALUES = (1, 0.5), (3, -0.25), (4, 1.0)


@pytest.mark.parametrize("needed", [*product([False, True], repeat=5)])
def test_a_position_does_not_depend_on_the_positions_that_were_asked_for(needed):
    state = BoostingState(2)
    steps = [
        *(lambda s, level=level: s.grown(level, SCALES) for level in LEVELS),
        lambda s: s.ended(LEVELS[0], VALUES),
        lambda s: s.grown(LEVELS[0], SCALES).ended(LEVELS[1], VALUES[:2]),
        lambda s: s.grown(LEVELS[1], SCALES),
    ]
    for step, ask in zip(steps, [*needed, True], strict=True):
        if ask:
            assert state.position
        state = step(state)
    told = [state, state.before_tree]
    whole = BoostingState(state.grids, None, state.rounds)
    assert [each.position for each in told] == [
        BoostingState(state.grids, None, state.rounds, state.splits, state.levels, state.scales).position,
        whole.position,
    ]
