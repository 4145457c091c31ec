"""Runs HEU of SecretFlow for `rowsums.py`, in an interpreter that has the package.

Arguments: scheme, key bits, rows, columns, bins. The last line on standard output is JSON: the CPU seconds
of each step over all threads, on one core if the system allows it, the sent bytes, and the version.
Gradient and hessian of a row are packed into one ciphertext, the default of SecretFlow's SGB (batch
encoding). Key generation and serialization are not timed. Decrypted sums are compared with plain sums; a
difference prints one line on standard error, with exit status 1.
"""

import json
import os
import sys
import time
from importlib.metadata import version

if hasattr(os, "sched_setaffinity"):  # before HEU counts cores to start threads
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np
from heu import numpy as heu
from heu import phe

UNITS = 1 << 15
"""Fixed-point value of a gradient of 1."""
scheme, (bits, rows, columns, bins) = sys.argv[1], map(int, sys.argv[2:])
draw = np.random.default_rng(0)
gradients = draw.integers(-UNITS // 2, UNITS // 2, rows)
pairs = np.stack([gradients, draw.integers(1, UNITS // 4, rows)], axis=1)
codes = draw.integers(0, bins, (rows, columns)).astype(np.int8)
kit = heu.HeKit(phe.setup(getattr(phe.SchemaType, scheme), bits))
encoder = kit.batch_integer_encoder()
encryptor, evaluator, decryptor = kit.encryptor(), kit.evaluator(), kit.decryptor()
decryptor.decrypt(encryptor.encrypt(kit.array(pairs[:20], encoder)))  # what is made once is
seconds: dict[str, float] = {}
start = time.process_time()


def done(what: str) -> None:
    """Record the end of a step."""
    global start
    now = time.process_time()
    seconds[what] = now - start
    start = now


encrypted = encryptor.encrypt(kit.array(pairs, encoder))
done("encrypt")
sums = evaluator.feature_wise_bucket_sum(encrypted, np.ones(rows, np.int8), codes, bins, False)
done("sums")
found = decryptor.decrypt_in_range(sums).to_numpy(encoder)
done("open")
plain = [np.bincount(column, of, bins) for column in codes.T for of in pairs.T]
if not np.array_equal(found, np.reshape(plain, (columns, 2, bins)).transpose(0, 2, 1).reshape(-1, 2)):
    sys.exit("HEU decrypts something else than the plain sums")
sizes = {"gradients": len(encrypted.serialize()), "sums": len(sums.serialize())}
print(json.dumps({"seconds": seconds, "bytes": sizes, "version": version("sf_heu")}))
