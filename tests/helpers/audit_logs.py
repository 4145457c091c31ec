"""Audit logs, and what is wrong with them."""

import dataclasses

from sites import terms

from fedboost.protocol.site import Release
from fedboost.runtime.site.audit import AuditLog

PAIR = ("north", "south")
RELEASE = Release("s", 1, 1, "RowsQuery", 385, 3080, "plain", PAIR)
PLACE = {"question": "ab" * 32, "position": "cd" * 32}


def written(path, releases=3):
    """A log of one session: its lines."""
    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        for turn in range(1, releases + 1):
            log.record(dataclasses.replace(RELEASE, turn=turn))
        log.ended("s", "")
    return path.read_bytes().splitlines(keepends=True)
