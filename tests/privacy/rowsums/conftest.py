"""What sums rows needs the extra `paillier`."""

from consortium import installed

collect_ignore_glob = [] if installed("paillier") else ["test_*.py"]
