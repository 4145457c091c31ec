"""Pages that commands write beside their result (`--report`).

Promises: a page appears whole or not at all, and in the place of no other file of the command.
Refuses: a file that exists, without --force (ConfigError, exit code 2).
"""

import os
from pathlib import Path

from fedboost.errors import ConfigError


def check_page(page: Path | None, *inputs: Path, force: bool, outputs: tuple[Path, ...] = ()) -> None:
    """Raise ConfigError now if a page could not be written later, or would replace an input or an output."""
    from fedboost.runtime.files import check_writable

    if page is None:
        return
    if os.path.realpath(page) in map(os.path.realpath, outputs):
        raise ConfigError(
            f"--report: {page} is another output of this very command; give the page another name"
        )
    check_writable(page, *inputs, force=force)
