"""Verify an export of a site's audit log without fedboost: python verify_export.py north.jsonl [HASH ...]

An entry's hash is the SHA-256 of its line without the hash, and each entry has the hash of the one before.
Terms stand in lines of their own, under their SHA-256. HASH: one that was kept, which an entry must have.
"""

import hashlib
import json
import sys
from pathlib import Path

number, first, last, known = 0, 0, "0" * 64, ["0" * 64]
for place, line in enumerate(Path(sys.argv[1]).read_bytes().splitlines(keepends=True), 1):
    values = json.loads(line)
    if "terms" in values:
        text = {"terms": hashlib.sha256(values["text"].encode()).hexdigest(), "text": values["text"]}
        if line.rstrip() != json.dumps(text, separators=(",", ":")).encode():
            sys.exit(f"line {place}: these terms were changed")
        continue
    if len(known) == 1 and values["event"]["kind"] == "exported":
        # What was before it is in an earlier export.
        number, last = values["event"]["known"], values["event"]["last"]
        known.append(last)
    content = line.rpartition(b',"hash":')[0]
    digest = hashlib.sha256(content + b"}").hexdigest()
    as_written = line == content + b',"hash":"' + digest.encode() + b'"}\n'
    if not as_written or (values["n"], values["previous"]) != (number + 1, last):
        sys.exit(f"line {place}: changed, or entries before it were removed, moved or replaced")
    number, last = number + 1, digest
    known.append(last)
    first = first or number
if missing := [kept for kept in sys.argv[2:] if kept not in known]:
    sys.exit(f"no entry has the hash {missing[0]}: the log was cut short or rewritten")
print(f"unbroken from entry {first} to entry {number}, which has the hash {last}")
