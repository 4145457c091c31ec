"""Runs both roles of openmined-psi for `alignment.py`, in an interpreter that has the package.

Arguments: the number of ids and the structure of the server's list. Prints one line of JSON with the CPU
seconds of each step, the number of common ids, and the version. Generating ids and serializing messages is
not timed.
"""

import json
import sys
import time

import private_set_intersection.python as psi

FALSE_POSITIVES = 1e-9
"""Probability that the structure gcs has one too many; raw is exact."""
rows, structure = int(sys.argv[1]), sys.argv[2]
own = [f"id-{n}" for n in range(rows)]
other = [f"id-{n}" for n in range(rows // 2, rows + rows // 2)]
seconds: dict[str, float] = {}
start = time.process_time()


def done(what: str) -> None:
    """Record the end of a step."""
    global start
    now = time.process_time()
    seconds[what] = now - start
    start = now


server, client = psi.server.CreateWithNewKey(True), psi.client.CreateWithNewKey(True)
kind = {"raw": psi.DataStructure.RAW, "gcs": psi.DataStructure.GCS}[structure]
setup = server.CreateSetupMessage(FALSE_POSITIVES, rows, own, kind)
done("server's list")
request = client.CreateRequest(other)
done("client's list")
response = server.ProcessRequest(request)
done("client's list again")
common = client.GetIntersection(setup, response)
done("intersection")
print(json.dumps({"seconds": seconds, "common": len(common), "version": psi.__version__}))
