"""What every process of fedboost loads sooner or later, for the server that forks them (forked.py). No kernel
is called, and no thread begins but those of libraries that are made to be forked."""

import os
from contextlib import suppress
from importlib import import_module

from numba.core.registry import cpu_target

MODULES = (
    "fedboost.cli.main",
    "fedboost.runtime.aggregator.server",
    "fedboost.runtime.site.node",
    "pyarrow.parquet",
    "structlog",
    "pandas",  # pyarrow loads it with the first file, where there is one
    "phe",
)

os.environ["GRPC_VERBOSITY"] = "NONE"  # as the command sets it before it imports grpc
for module in MODULES:
    with suppress(ImportError):
        import_module(module)
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
