"""A site's memory on disk, sessions of which it knows, and budgets."""

from contextlib import contextmanager
from dataclasses import replace

from fedboost.protocol.contracts import NOWHERE
from fedboost.protocol.site import Budget, Limits, Question, SessionOffer
from fedboost.runtime.site.memory import FileMemory, read_spent
from fedboost.runtime.site.store import make_file
from fedboost.terms.terms import Terms

THREE = ("north", "south", "east")
BUDGET = Budget(1.2, 1e-5)
ANY = Limits(max_sessions=1000)
COLUMNS = {
    "label": "y",
    "numeric": ["age", "dose"],
    "ranges": {"age": [0, 100], "dose": [-5, 5]},
    "categorical": {"ward": ["a", "b", "c"]},
}


def noisy(epsilon=1.0, **settings):
    """Terms with noise that fit the tables of `sites`."""
    noise = {"epsilon": epsilon, "delta": 1e-5}
    return Terms.read({"columns": COLUMNS, "parties": THREE, "rounds": 2, "noise": noise, **settings})


LONG = noisy(1.2, rounds=18)
"""With 20 releases, which spend nearly all of the budget."""


@contextmanager
def opened(path, dataset="patients", budget=None, party="north", **settings):
    """A memory, closed at the end; made if there is none."""
    if not path.exists():
        make_file(path, dataset)
    memory = FileMemory(path, party, dataset, budget, **settings)
    try:
        yield memory
    finally:
        memory.close()


def reopening(path, party, dataset="rows"):
    """What gives the memory of a party to one process after the other, as the field of its site."""
    processes = []
    make_file(path, dataset)

    def memory():
        while processes:
            processes.pop().close()
        processes.append(FileMemory(path, party, dataset))
        return {"memory": processes[-1]}

    return memory


def begun(memory, session="s", agreement=None, **settings):
    """A session of the memory."""
    return memory.begin(SessionOffer(session, agreement or noisy(), **settings), ANY)


def spend_all(memory, session, agreement):
    """Charge everything that terms plan."""
    session = begun(memory, session, agreement)
    for release in agreement.plan.releases.values():
        for number in range(release.times):
            session.charge(f"{release.what} {number}", release.cost)
    return session


def cost_of(path):
    return read_spent(path).cost


def question(turn):
    """A question, at another position each turn."""
    before, after = (
        replace(NOWHERE, rounds=number, model=bytes([number]) * 32) for number in (turn, turn + 1)
    )
    return Question(turn, bytes([turn]) * 32, True, before, after)
