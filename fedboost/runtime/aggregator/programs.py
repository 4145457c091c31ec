"""Which program a name in the terms stands for. Code never travels: custom ones are named in the aggregator's
own file. Refuses names that are not, and modules that cannot be imported (ConfigError)."""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import cast

from fedboost.boosting.programs import boosting, initialisation, private
from fedboost.boosting.programs.boosting import tune
from fedboost.boosting.programs.tasks import describe, drift, evaluate
from fedboost.errors import ConfigError
from fedboost.protocol.contracts import Program
from fedboost.terms.session import TO_DESCRIBE, TO_DRIFT, TO_EVALUATE, TO_TUNE
from fedboost.terms.terms import Terms

BUILT_IN: dict[str, Program] = {
    "boosting": boosting.train,
    TO_DESCRIBE: describe,
    TO_EVALUATE: evaluate,
    TO_DRIFT: drift,
    TO_TUNE: tune,
}


def program_of(terms: Terms, allowed: Iterable[str]) -> Program:
    """The program of these terms; where they predict, or have noise, `boosting` is another one."""
    if terms.vertical.predicts:
        return initialisation.predict
    if terms.noise is not None and terms.session.program == "boosting":
        return private.train
    return load_program(terms.session.program, allowed)


def load_program(name: str, allowed: Iterable[str]) -> Program:
    """A built-in program, or `module:function` if it is among the allowed ones."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in set(allowed):
        known = ", ".join([*BUILT_IN, *allowed])
        raise ConfigError(f"program {name!r} is not offered here (offered: {known})")
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"program {name!r}: write module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder the aggregator was started in
    try:
        program = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001 - importing runs the user's own code
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"program {name!r} cannot be loaded: {reason}") from None
    if not callable(program):
        raise ConfigError(f"program {name!r} cannot be loaded: it is no function")
    return cast(Program, program)
