"""A process of its own that reads a site's file, holds the rows of a session and answers a question: prints
the rows, the answer, and the most memory that it had, in MB. python party_memory.py PARTY_TOML TERMS"""

import sys
from pathlib import Path

import structlog

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms
from fedboost.runtime.workers.hold import finished
from fedboost.runtime.workers.holder import rows_of


def main(party, terms):
    rows = rows_of(read_party(Path(party)), structlog.get_logger())
    agreed = read_terms(Path(terms))
    assert rows.faults(agreed) == []
    holder = rows.hold(agreed, b"", lambda terms: b"", lambda terms: None, lambda terms: None)
    (answer, *_) = finished(holder.answering(RowsQuery()))
    status = Path("/proc/self/status").read_text()  # what `resource` says has the parent's in it
    print(rows.rows, answer, int(status.split("VmHWM:")[1].split()[0]) >> 10)
    rows.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
