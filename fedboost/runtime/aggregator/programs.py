"""The program (training algorithm) that runs at the aggregator for each task. Custom programs must be listed
in the aggregator's configuration file; code is never sent over the network."""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import cast

from fedboost.boosting.programs import boosting, initialisation, private, tasks
from fedboost.errors import ConfigError
from fedboost.protocol.contracts import Program
from fedboost.terms.session import TASKS
from fedboost.terms.terms import Terms

OF_TASKS: dict[str, Program] = {
    "train": boosting.train,
    "tune": boosting.tune,
    **tasks.PROGRAMS,
    "predict": initialisation.predict,
}
"""Task -> its built-in program. Training with differential privacy uses a different program."""


def program_of(terms: Terms, allowed: Iterable[str]) -> Program:
    if not terms.session.is_built_in:
        return load_program(terms.session.program, allowed)
    if terms.task.trains and terms.noise is not None:
        return private.train
    return OF_TASKS[terms.task.name]


def load_program(name: str, allowed: Iterable[str]) -> Program:
    """Import the custom program `module:function`. Raises ConfigError if it is not in `allowed` or cannot be
    imported."""
    if name not in set(allowed):
        known = ", ".join([*(row.program for row in TASKS.values() if row.program), *allowed])
        raise ConfigError(
            "program-not-offered", f"program {name!r} is not offered by this aggregator; use one of {known}"
        )
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError("program-bad-name", f"program {name!r} is not a valid name; write module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")  # for modules in the folder in which the aggregator was started
    try:
        program = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001 - importing runs the user's own code
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError("program-not-loaded", f"program {name!r} cannot be loaded: {reason}") from None
    if not callable(program):
        raise ConfigError("program-not-loaded", f"program {name!r} cannot be loaded: it is not a function")
    return cast(Program, program)
